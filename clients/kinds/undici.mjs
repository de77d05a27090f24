// Node's undici, the client behind `fetch`: forwarded requests, and tunnels to a clear origin and to one inside TLS.

import {asks, big, ca, done, failure, load, pieces, run, same, small, uploaded} from './common.mjs';
import {PLAIN, PROXY, PROXY_PLAIN, PROXY_WRONG, REFUSED, TLS, TUNNEL} from './common.mjs';

const {Pool, ProxyAgent, fetch, request} = load('undici');
const ways = [PLAIN, TUNNEL, TLS];

// Does something with an agent of its own that uses the proxy in the way of this origin.
async function through(base, act, {proxy = PROXY, ...settings} = {}) {
  const dispatcher = new ProxyAgent({uri: proxy, proxyTunnel: base !== PLAIN, requestTls: {ca}, proxyTls: {ca}, ...settings});
  try {
    await act((path, options) => fetch(path.includes('://') ? path : base + path, {dispatcher, ...options}), dispatcher);
  } finally {
    await dispatcher.destroy();
  }
}

const body = async answer => Buffer.from(await answer.arrayBuffer());

await run('small and big', ways, base => through(base, async get => {
  const answer = await get('/small');
  same(answer.headers.getSetCookie(), ['a=1', 'b=2']);
  same(await body(answer), small);
  for (const path of ['/big', '/chunked/big', '/gzip', '/until-close']) same(await body(await get(path)), big);
}));

await run('upload', ways, base => through(base, async get => {
  uploaded(await body(await get('/upload', {method: 'POST', body: big})), 'length');
  uploaded(await body(await get('/upload', {method: 'PUT', body: big})), 'length', 'PUT');
  const stream = ReadableStream.from(pieces());
  uploaded(await body(await get('/upload', {method: 'POST', body: stream, duplex: 'half'})), 'chunked');
}));

await run('both directions', ways, base => through(base, async (_, dispatcher) => {
  const answer = await request(`${base}/mirror`, {dispatcher, method: 'POST', body: pieces()});
  same(Buffer.from(await answer.body.arrayBuffer()), big);
}));

await run('head and no content', ways, base => through(base, async get => {
  same((await get('/big', {method: 'HEAD'})).headers.get('content-length'), String(big.length));
  for (const status of [204, 404, 500]) {
    const answer = await get(`/status/${status}`);
    same([answer.status, await answer.text()], [status, status === 204 ? '' : `status ${status}\n`]);
  }
}));

await run('conditional', ways, base => through(base, async get => {
  const tag = (await get('/tagged')).headers.get('etag');
  const answer = await get('/tagged', {headers: {'If-None-Match': tag}});
  same([answer.status, await answer.text()], [304, '']);
}));

await run('redirects', ways, base => through(base, async get => {
  same(await body(await get('/redirect/5')), small);
  // A buffer is gone once it was sent; this can be sent again.
  uploaded(await body(await get('/moved', {method: 'POST', body: new Blob([big])})), 'length');
  if (base !== PLAIN) same(await body(await get('/to-tls')), small);
}));

await run('connection is kept', ways, async base => {
  let connected = 0;
  const factory = (origin, options) => new Pool(origin, {...options, connections: 1}).on('connect', () => connected++);
  await through(base, async (_, dispatcher) => {
    for (const path of ['small', 'big', 'chunked/big', 'status/204', 'gzip', 'small']) {
      await (await request(`${base}/${path}`, {dispatcher})).body.arrayBuffer();
    }
  }, {factory});
  same(connected, 1);
});

await run('many at once', ways, base => through(base, async get => {
  const bodies = await Promise.all(Array.from({length: 40}, async () => body(await get('/big'))));
  for (const one of bodies) same(one, big);
}, {connections: 10}));

await run('refused port', ways, base => through(base, async (_, dispatcher) => {
  if (base === PLAIN) return same((await request(`http://${REFUSED}/`, {dispatcher})).statusCode, 502);
  const error = await failure(request(`${base === TLS ? 'https' : 'http'}://${REFUSED}/`, {dispatcher}));
  same(error.message, 'Proxy response (502) !== 200 when HTTP Tunneling');
}));

if (asks) {
  for (const [name, proxy] of [['wrong login', PROXY_WRONG], ['no login', PROXY_PLAIN]]) {
    await run(name, ways, base => through(base, async (_, dispatcher) => {
      const error = await failure(request(`${base}/small`, {dispatcher}));
      same(error.message, base === PLAIN ? 'Proxy Authentication Required (407)' : 'Proxy response (407) !== 200 when HTTP Tunneling');
    }, {proxy}));
  }
  await run('login beside the URL', ways, base => through(base, async get => {
    same(await body(await get('/small')), small);
  }, {proxy: PROXY_PLAIN, token: 'Basic ' + Buffer.from(`${process.env.PROXY_USER}:${process.env.PROXY_PASSWORD}`).toString('base64')}));
}

done();
