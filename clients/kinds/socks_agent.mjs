// Node's http and https modules with socks-proxy-agent.

import http from 'node:http';
import https from 'node:https';
import {asks, big, ca, done, expect, failure, load, pieces, run, same, small, uploaded} from './common.mjs';
import {IPV6, PLAIN, PROXY, PROXY_PLAIN, PROXY_WRONG, REFUSED, TLS} from './common.mjs';

const {SocksProxyAgent} = load('socks-proxy-agent');
const schemes = asks ? ['socks5', 'socks5h'] : ['socks4', 'socks4a', 'socks5', 'socks5h'];
const ways = schemes.flatMap(scheme => [`${scheme} ${PLAIN}`, `${scheme} ${TLS}`]);

function agent(scheme, proxy = PROXY) {
  return new SocksProxyAgent(proxy.replace('socks5', scheme), {keepAlive: true, maxSockets: 1});
}

function exchange(url, agent, {body, ...options} = {}) {
  return new Promise((resolve, reject) => {
    const sent = (url.startsWith('https') ? https : http).request(url, {agent, ca, ...options}, answer => {
      const {localPort} = answer.socket, parts = [];
      answer.on('data', part => parts.push(part));
      answer.on('error', reject);
      answer.on('end', () => resolve({status: answer.statusCode, body: Buffer.concat(parts), port: localPort}));
    });
    sent.on('error', reject);
    if (body?.next) {
      for (const piece of body) sent.write(piece);
      sent.end();
    } else {
      sent.end(body);
    }
  });
}

const split = way => [way.split(' ')[0], way.split(' ')[1]];
const expectNames = (scheme, base, count = 1) => {
  if (base === TLS && ['socks4a', 'socks5h'].includes(scheme)) expect('name', count);
};

await run('bodies on one connection', ways, async way => {
  const [scheme, base] = split(way), one = agent(scheme), ports = new Set();
  expectNames(scheme, base);
  const ask = async (path, options) => {
    const answer = await exchange(`${base}/${path}`, one, options);
    ports.add(answer.port);
    return answer.body;
  };
  same(await ask('small'), small);
  same(await ask('big'), big);
  same(await ask('chunked/big'), big);
  uploaded(await ask('upload', {method: 'POST', body: big, headers: {'Content-Length': big.length}}), 'length');
  uploaded(await ask('upload', {method: 'POST', body: pieces()}), 'chunked');
  same(await ask('mirror', {method: 'POST', body: pieces()}), big);
  same(ports.size, 1);
  one.destroy();
});

await run('many at once', ways, async way => {
  const [scheme, base] = split(way), one = agent(scheme);
  one.maxSockets = 10;
  expectNames(scheme, base, 10);
  const answers = await Promise.all(Array.from({length: 10}, () => exchange(`${base}/big`, one)));
  for (const answer of answers) same(answer.body, big);
  one.destroy();
});

await run('IPv6', ['socks5'], async scheme => {
  const one = agent(scheme);
  same((await exchange(`${IPV6}/small`, one)).body, small);
  one.destroy();
});

await run('refused port', schemes, async scheme => {
  expect('refused');
  const error = await failure(exchange(`http://${REFUSED}/`, agent(scheme)));
  same(error.message, scheme.startsWith('socks4') ? 'Socks4 Proxy rejected connection - (Failed)' : 'Socks5 proxy rejected connection - ConnectionRefused');
});

if (asks) {
  await run('wrong login', undefined, async () => {
    expect('login-1');
    same((await failure(exchange(`${PLAIN}/small`, agent('socks5', PROXY_WRONG)))).message, 'Socks5 Authentication failed');
    expect('login-255');
    const none = await failure(exchange(`${PLAIN}/small`, agent('socks5', PROXY_PLAIN)));
    same(none.message, 'Received invalid Socks5 initial handshake (no accepted authentication type)');
  });
}

done();
