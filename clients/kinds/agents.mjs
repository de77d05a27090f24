// Node's http and https modules with http-proxy-agent (forwarded requests) and https-proxy-agent (tunnels).

import {once} from 'node:events';
import http from 'node:http';
import https from 'node:https';
import {gunzipSync} from 'node:zlib';
import {asks, big, ca, done, load, pieces, run, same, small, uploaded} from './common.mjs';
import {PLAIN, PROXY, PROXY_PLAIN, PROXY_WRONG, REFUSED, TLS, TUNNEL} from './common.mjs';

const {HttpProxyAgent} = load('http-proxy-agent');
const {HttpsProxyAgent} = load('https-proxy-agent');
const ways = [PLAIN, TUNNEL, TLS];

// An agent for the way of this origin; it keeps one connection.
function agent(base, proxy = PROXY) {
  const settings = {keepAlive: true, maxSockets: 1, ca};
  return base === PLAIN ? new HttpProxyAgent(proxy, settings) : new HttpsProxyAgent(proxy, settings);
}

// Sends a request and resolves to its answer: status, fields, body, and the client's port.
function exchange(url, agent, {body, ...options} = {}) {
  return new Promise((resolve, reject) => {
    const sent = (url.startsWith('https') ? https : http).request(url, {agent, ca, ...options}, answer => {
      const {localPort} = answer.socket, parts = [];
      answer.on('data', part => parts.push(part));
      answer.on('error', reject);
      answer.on('end', () => resolve({
        status: answer.statusCode, fields: answer.headers, trailers: answer.trailers, body: Buffer.concat(parts), port: localPort,
      }));
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

await run('small and big', ways, async base => {
  const one = agent(base);
  const answer = await exchange(`${base}/small`, one);
  same(answer.fields['set-cookie'], ['a=1', 'b=2']);
  same(answer.body, small);
  same((await exchange(`${base}/big`, one)).body, big);
  const chunked = await exchange(`${base}/chunked/big`, one);
  same(chunked.body, big);
  same(chunked.trailers['x-end'], 'reached');
  same(gunzipSync((await exchange(`${base}/gzip`, one)).body), big);
  same((await exchange(`${base}/until-close`, one)).body, big);
  one.destroy();
});

await run('upload', ways, async base => {
  const one = agent(base);
  const headers = {'Content-Length': big.length};
  uploaded((await exchange(`${base}/upload`, one, {method: 'POST', body: big, headers})).body, 'length');
  uploaded((await exchange(`${base}/upload`, one, {method: 'PUT', body: big, headers})).body, 'length', 'PUT');
  uploaded((await exchange(`${base}/upload`, one, {method: 'POST', body: pieces()})).body, 'chunked');
  same((await exchange(`${base}/mirror`, one, {method: 'POST', body: pieces()})).body, big);
  one.destroy();
});

// Not forwarded: http-proxy-agent sends a head that was flushed early a second time, as part of the body.
await run('expect continue', [TUNNEL, TLS], async base => {
  const one = agent(base);
  const options = {agent: one, ca, method: 'POST', headers: {'Content-Length': big.length, Expect: '100-continue'}};
  const sent = (base === TLS ? https : http).request(`${base}/upload`, options);
  sent.flushHeaders();
  await once(sent, 'continue');
  sent.end(big);
  const [answer] = await once(sent, 'response');
  uploaded((await answer.toArray()).join(''), 'length');
  one.destroy();
});

await run('head and no content', ways, async base => {
  const one = agent(base);
  same((await exchange(`${base}/big`, one, {method: 'HEAD'})).fields['content-length'], String(big.length));
  for (const status of [204, 404, 500]) {
    const answer = await exchange(`${base}/status/${status}`, one);
    same([answer.status, String(answer.body)], [status, status === 204 ? '' : `status ${status}\n`]);
  }
  one.destroy();
});

await run('conditional', ways, async base => {
  const one = agent(base);
  const tag = (await exchange(`${base}/tagged`, one)).fields.etag;
  same((await exchange(`${base}/tagged`, one, {headers: {'If-None-Match': tag}})).status, 304);
  one.destroy();
});

await run('redirects', ways, async base => {
  const one = agent(base);
  let answer = await exchange(`${base}/redirect/5`, one), steps = 0;
  for (; answer.status === 302; steps++) answer = await exchange(base + answer.fields.location, one);
  same(steps, 5);
  same(answer.body, small);
  one.destroy();
});

await run('connection is kept', ways, async base => {
  const one = agent(base), ports = new Set();
  for (const path of ['small', 'big', 'chunked/big', 'status/204', 'gzip', 'small']) {
    ports.add((await exchange(`${base}/${path}`, one)).port);
  }
  same(ports.size, 1);
  one.destroy();
});

await run('many at once', ways, async base => {
  const one = agent(base);
  one.maxSockets = 10;
  const answers = await Promise.all(Array.from({length: 40}, () => exchange(`${base}/big`, one)));
  for (const answer of answers) same(answer.body, big);
  one.destroy();
});

await run('refused port', [PLAIN, TUNNEL], async base => {
  const one = agent(base);
  // Of a refused tunnel https-proxy-agent shows the proxy's own answer.
  same((await exchange(`http://${REFUSED}/`, one)).status, 502);
  if (base === TUNNEL) same((await exchange(`https://${REFUSED}/`, one)).status, 502);
  one.destroy();
});

if (asks) {
  for (const [name, proxy] of [['wrong login', PROXY_WRONG], ['no login', PROXY_PLAIN]]) {
    await run(name, ways, async base => {
      const one = agent(base, proxy);
      same((await exchange(`${base}/small`, one)).status, 407);
      one.destroy();
    });
  }
}

done();
