"""The page for the browser: 50 resources of all kinds, sizes and framings, and a script that tells what became of them."""

import json
import random
import struct
import zlib

STYLES, SCRIPTS, PICTURES, FETCHED = 8, 10, 20, 12
RESOURCES = STYLES + SCRIPTS + PICTURES + FETCHED


class Page:
    """Its files by name, the same ones in every run; `websocket` is where the page in clear finds its WebSocket."""

    def __init__(self, big, websocket=""):
        chance = random.Random(50)
        size = lambda: int(200 * 1000 ** chance.random())
        letters = lambda: chance.randbytes(size() // 2).hex().encode()
        self.files = {}
        for number in range(STYLES):
            self._add(f"{number}.css", b"body{margin:%dpx}/* %b */" % (number, letters()), "text/css")
        for number in range(SCRIPTS):
            self._add(f"{number}.js", b"window.ran=(window.ran||0)+1;// %b" % letters(), "text/javascript")
        for number in range(PICTURES):
            self._add(f"{number}.png", picture(chance, 16 + 8 * number), "image/png")
        for number in range(FETCHED - 1):
            self._add(f"{number}.bin", chance.randbytes(size()), "application/octet-stream")
        self._add("big.bin", big, "application/octet-stream")
        assert len(self.files) == RESOURCES
        names = {kind: [name for name in self.files if name.endswith(kind)] for kind in (".css", ".js", ".png", ".bin")}
        self.html = HTML.replace("NAMES", json.dumps(names)).replace("TAGS", tags(names)).replace("WEBSOCKET", websocket)

    def _add(self, name, body, kind):
        how = ("length", "chunked", "gzip")[len(self.files) % 3]
        self.files[name] = (body, kind, how)

    def resource(self, name):
        """Body, type and framing of what is at `/page/NAME`; the page itself has no name."""
        if not name:
            return self.html.encode(), "text/html", "length"
        return self.files.get(name, (None, None, None))


def tags(names):
    return "".join(
        [f'<link rel=stylesheet href="/page/{name}">' for name in names[".css"]]
        + [f'<img src="/page/{name}">' for name in names[".png"]]
        + [f'<script src="/page/{name}"></script>' for name in names[".js"]])


def picture(chance, side):
    """A PNG of noise, which does not get smaller."""
    def part(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + chance.randbytes(3 * side) for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


# `told` resolves to what the page found; the driver asks for it.
HTML = """<!doctype html><meta charset=utf-8><title>page</title><body>TAGS<script>
const names = NAMES;
const loaded = new Promise(done => addEventListener('load', done));
async function fetched() {
  const bodies = await Promise.all(names['.bin'].map(name => fetch('/page/' + name).then(answer => answer.arrayBuffer())));
  return bodies.map(body => body.byteLength);
}
function talk() {
  return new Promise((done, fail) => {
    const heard = [], long = 'w'.repeat(300000);
    const socket = new WebSocket(location.protocol === 'http:' ? 'WEBSOCKET' : location.origin.replace('http', 'ws') + '/ws');
    socket.binaryType = 'arraybuffer';
    socket.onerror = () => fail(new Error('the WebSocket failed behind ' + heard.length));
    socket.onclose = event => done({heard, code: event.code});
    socket.onopen = () => socket.send('short');
    socket.onmessage = ({data}) => {
      heard.push(data === long ? 'long' : data instanceof ArrayBuffer ? data.byteLength : data);
      if (data === 'short') socket.send(long);
      if (data === long) socket.send(new Uint8Array(70000));
      if (data instanceof ArrayBuffer) socket.close(1000);
    };
  });
}
function listen() {
  return new Promise((done, fail) => {
    const heard = [], source = new EventSource('/events');
    source.onerror = () => fail(new Error('the events failed behind ' + heard.length));
    source.onmessage = event => { heard.push(event.data); if (heard.length == 5) { source.close(); done(heard); } };
  });
}
async function upload() {
  const answer = await fetch('/upload', {method: 'POST', body: new Uint8Array(5000000).fill(7)});
  return (await answer.json()).length;
}
const told = (async () => {
  const [sizes, socket, events, length] = await Promise.all([fetched(), talk(), listen(), upload(), loaded]);
  return {
    sizes, socket, events, upload: length, scripts: window.ran,
    styles: [...document.styleSheets].filter(sheet => sheet.cssRules.length).length,
    pictures: [...document.images].map(image => image.naturalWidth),
  };
})();
</script></body>"""
