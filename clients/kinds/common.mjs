// What the Node programs share: the surroundings that the suite gave them, and how they tell of a case.

import assert from 'node:assert/strict';
import {createHash} from 'node:crypto';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

export const {PROXY, PROXY_PLAIN, PROXY_WRONG, PLAIN, TUNNEL, TLS, IPV6, REFUSED, CA, WORK, LISTENER} = process.env;
export const asks = !['open', 'socks'].includes(LISTENER);
export const ca = readFileSync(CA);
export const small = readFileSync(`${WORK}/small`);
export const big = readFileSync(`${WORK}/big`);
// Unlike `import`, this looks into the folders of NODE_PATH.
export const load = createRequire(import.meta.url);

const names = {[PLAIN]: 'forwarded', [TUNNEL]: 'tunnel in clear', [TLS]: 'tunnel to TLS', [IPV6]: 'IPv6'};
const digest = createHash('sha256').update(big).digest('hex');
// On a machine that is busy; on an idle one no case takes longer than a second or two.
const caseSeconds = 60;
let failed = false;

export function same(found, wanted) {
  if (Buffer.isBuffer(wanted)) {
    assert.ok(Buffer.isBuffer(found) && found.equals(wanted), `${found?.length} bytes instead of ${wanted.length}, or others`);
  } else {
    assert.deepEqual(found, wanted);
  }
}

// Checks what the origin tells of an upload of `big`.
export function uploaded(body, framing, method = 'POST') {
  same(JSON.parse(body), {method, length: big.length, sha256: digest, framing});
}

// `big` in pieces, for uploads whose length is not told.
export function* pieces() {
  for (let at = 0; at < big.length; at += 70001) yield big.subarray(at, at + 70001);
}

// The error that a promise fails with.
export async function failure(promise) {
  const value = await promise.then(() => null, error => error);
  assert.ok(value, 'it did not fail');
  return value;
}

// Runs a case for each of the values, or once, and prints a line for each.
export async function run(name, values, body) {
  for (const value of values ?? [undefined]) {
    const title = value === undefined ? name : `${name}, ${names[value] ?? value}`;
    let timer;
    const late = new Promise((_, fail) => {
      timer = setTimeout(() => fail(new Error(`not done after ${caseSeconds} s`)), caseSeconds * 1000);
    });
    try {
      await Promise.race([body(value), late]);
      console.log(`ok ${title}`);
    } catch (error) {
      failed = true;
      console.error(error);
      const cause = error?.cause ? ` (${error.cause.message ?? error.cause})` : '';
      console.log(`FAILED ${title}: ${error?.message ?? error}${cause}`.replaceAll('\n', ' ').slice(0, 700));
    } finally {
      clearTimeout(timer);
    }
  }
}

// Tells the suite what the access log of a SOCKS listener has to have, exactly; the words are those of common.py.
const expected = {};
export function expect(what, count = 1) {
  expected[what] = (expected[what] ?? 0) + count;
}

export function done() {
  console.log(`expected ${JSON.stringify(expected)}`);
  process.exit(failed ? 1 : 0);
}
