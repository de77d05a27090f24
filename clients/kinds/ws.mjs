// Node's ws: WebSocket forwarded by http-proxy-agent, and through the tunnels of https-proxy-agent.

import {once} from 'node:events';
import {asks, big, ca, done, failure, load, run, same} from './common.mjs';
import {PLAIN, PROXY, PROXY_PLAIN, PROXY_WRONG, REFUSED, TLS, TUNNEL} from './common.mjs';

const WebSocket = load('ws');
const {HttpProxyAgent} = load('http-proxy-agent');
const {HttpsProxyAgent} = load('https-proxy-agent');
const ways = [PLAIN, TUNNEL, TLS];

// Resolves to an open WebSocket whose messages can be waited for with `next`.
async function talk(base, proxy = PROXY) {
  const agent = base === PLAIN ? new HttpProxyAgent(proxy) : new HttpsProxyAgent(proxy);
  const socket = new WebSocket(`${base.replace('http', 'ws')}/ws`, {agent, ca, perMessageDeflate: false});
  const heard = [], waiting = [];
  socket.on('message', (data, binary) => {
    const message = binary ? data : String(data);
    waiting.length ? waiting.shift()(message) : heard.push(message);
  });
  socket.next = () => heard.length ? heard.shift() : new Promise(resolve => waiting.push(resolve));
  await once(socket, 'open');
  same(await socket.next(), 'greeting');
  return socket;
}

async function close(socket) {
  socket.close(1000);
  same((await once(socket, 'close'))[0], 1000);
}

await run('messages', ways, async base => {
  const socket = await talk(base);
  for (const message of ['', 'short', 'x'.repeat(70000), big]) {
    socket.send(message);
    same(await socket.next(), message);
  }
  socket.ping('are you there');
  same(String((await once(socket, 'pong'))[0]), 'are you there');
  await close(socket);
});

await run('both directions', ways, async base => {
  const socket = await talk(base);
  const messages = Array.from({length: 2000}, (_, number) => `${number} ${'y'.repeat(number % 977)}`);
  for (const message of messages) socket.send(message);
  for (const message of messages) same(await socket.next(), message);
  await close(socket);
});

await run('many at once', ways, base => Promise.all(Array.from({length: 30}, async (_, number) => {
  const socket = await talk(base);
  socket.send(`${number}`);
  same(await socket.next(), `${number}`);
  await close(socket);
})));

await run('refused port', undefined, async () => {
  same((await failure(talk(`http://${REFUSED}`))).message, 'Unexpected server response: 502');
  same((await failure(talk(`https://${REFUSED}`))).message, 'Unexpected server response: 502');
});

if (asks) {
  for (const [name, proxy] of [['wrong login', PROXY_WRONG], ['no login', PROXY_PLAIN]]) {
    await run(name, ways, async base => {
      same((await failure(talk(base, proxy))).message, 'Unexpected server response: 407');
    });
  }
}

done();
