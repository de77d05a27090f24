//! Messages that two recipients might read in two ways, sent through the real
//! binary. What the other side got is judged by a parser that knows no mercy:
//! either nothing of it arrived and the sender was told so, or the very message
//! that was meant did, and no other can be read from it.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use support::{Conn, Ended, Origin, Proxyd, wait_for};

/// Fields, with the body behind, that no message may have: those of a request
/// behind its start line and `Host`, and those of an answer.
const FIELDS: &[&str] = &[
    // Length and coding together.
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
    "content-length: 5\r\nX: y\r\ntransfer-encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    "Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nabcde",
    "Content-Length: 0\r\nTransfer-Encoding:\r\n\r\n",
    // Codings.
    "Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: ,\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: 'chunked'\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\tx\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chun ked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \0chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: ch\u{fc}nked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \u{a0}chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\u{85}\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\ntransfer-encoding:\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: x\r\nX: y\r\nTRANSFER-ENCODING: chunked\r\n\r\n0\r\n\r\n",
    // Names and line ends.
    "Transfer-Encoding\x0b: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding\0: chunked\r\n\r\n0\r\n\r\n",
    "\0Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: y\r\n\tTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n , identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n \r\n\r\n0\r\n\r\n",
    "Transfer-Encoding\r\n: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding\r: chunked\r\n\r\n0\r\n\r\n",
    "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: y\r\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: y\n\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\n0\r\n\r\n",
    "\n0\r\n\r\n",
    "Transfer Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer\u{2010}Encoding: chunked\r\n\r\n0\r\n\r\n",
    ": chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding=chunked\r\n\r\n0\r\n\r\n",
    "(Transfer-Encoding): chunked\r\n\r\n0\r\n\r\n",
    "X: \x08\x7f\r\n\r\n",
    // Lengths.
    "Content-Length:\r\n\r\nabcde",
    "Content-Length: +5\r\n\r\nabcde",
    "Content-Length: -5\r\n\r\nabcde",
    "Content-Length: 5 5\r\n\r\nabcde",
    "Content-Length: 5,5\r\n\r\nabcde",
    "Content-Length: 5, 6\r\n\r\nabcde",
    "Content-Length: 5,\r\n\r\nabcde",
    "Content-Length: ,5\r\n\r\nabcde",
    "Content-Length: 5;5\r\n\r\nabcde",
    "Content-Length: 0x5\r\n\r\nabcde",
    "Content-Length: 0X5\r\n\r\nabcde",
    "Content-Length: 5.0\r\n\r\nabcde",
    "Content-Length: 5e0\r\n\r\nabcde",
    "Content-Length: 5_0\r\n\r\nabcde",
    "Content-Length: five\r\n\r\nabcde",
    "Content-Length: \"5\"\r\n\r\nabcde",
    "Content-Length: 9999999999999999999\r\n\r\nabcde",
    "Content-Length: 18446744073709551616\r\n\r\nabcde",
    "Content-Length: 18446744073709551621\r\n\r\nabcde",
    "Content-Length: 99999999999999999999999999\r\n\r\nabcde",
    "Content-Length: 00000000000000000005\r\n\r\nabcde",
    "Content-Length: 5\x0b\r\n\r\nabcde",
    "Content-Length: \x0c5\r\n\r\nabcde",
    "Content-Length: 5\0\r\n\r\nabcde",
    "Content-Length: 5\u{a0}\r\n\r\nabcde",
    "Content-Length: \u{ff15}\r\n\r\nabcde",
    "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
    "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    "Content-Length: 0\r\nContent-Length: 5\r\n\r\nabcde",
    "Content-Length: 5\r\nX: y\r\ncontent-length: 0\r\n\r\nabcde",
    "Content-Length:\r\nContent-Length: 5\r\n\r\nabcde",
    "Content-Length\r: 5\r\n\r\nabcde",
    "Content-Length: 5\r\n 0\r\n\r\nabcde",
    "Content-Length:\r\n 5\r\n\r\nabcde",
    "Content-Length: 5\r\r\n\r\nabcde",
    "X: y\nContent-Length: 5\r\n\r\nabcde",
    "X: y\rContent-Length: 5\r\n\r\nabcde",
    "Content-Length 5\r\n\r\nabcde",
];

/// Blanks before a colon, which only a response may have (P03).
const SPACED: &[&str] = &[
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length : 5\r\n\r\nabcde",
    "Content-Length\t: 5\r\n\r\nabcde",
    "X : y\r\nContent-Length: 5\r\n\r\nabcde",
];

/// Bodies that are no chunks, or whose end is in doubt.
const CHUNKS: &[&str] = &[
    "\r\n",
    ";\r\n\r\n",
    "g\r\n\r\n",
    "3h\r\nabc\r\n0\r\n\r\n",
    " 3\r\nabc\r\n0\r\n\r\n",
    "3 \r\nabc\r\n0\r\n\r\n",
    "3\t\r\nabc\r\n0\r\n\r\n",
    "3 ;a\r\nabc\r\n0\r\n\r\n",
    "+3\r\nabc\r\n0\r\n\r\n",
    "-3\r\nabc\r\n0\r\n\r\n",
    "0x3\r\nabc\r\n0\r\n\r\n",
    "3_0\r\nabc\r\n0\r\n\r\n",
    "3.0\r\nabc\r\n0\r\n\r\n",
    "\u{ff13}\r\nabc\r\n0\r\n\r\n",
    "3\nabc\r\n0\r\n\r\n",
    "3\r\rabc\r\n0\r\n\r\n",
    "3\0\r\nabc\r\n0\r\n\r\n",
    "3;a\nb\r\nabc\r\n0\r\n\r\n",
    "3;a\rb\r\nabc\r\n0\r\n\r\n",
    "3;a\0\r\nabc\r\n0\r\n\r\n",
    "3;\nabc\r\n0\r\n\r\n",
    "3\r\nabcd\r\n0\r\n\r\n",
    "3\r\nabc\n0\r\n\r\n",
    "3\r\nabc\r0\r\n\r\n",
    "3\r\nabc0\r\n\r\n",
    "3\r\nab\r\n0\r\n\r\n",
    "3\r\nabc\r\n\r\n0\r\n\r\n",
    "ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "10000000000000003\r\nabc\r\n0\r\n\r\n",
    "fffffffffffffffffffffff3\r\nabc\r\n0\r\n\r\n",
    "00000000000000000003\r\nabc\r\n0\r\n\r\n",
    "0\n\n",
    "0\r\n\n",
    "0\r\n\rX",
    "0 \r\n\r\n",
    "0\t\r\n\r\n",
    "0\r\n X: y\r\n\r\n",
    "0\r\nX: y\r\n z\r\n\r\n",
    "0\r\nX : y\r\n\r\n",
    "0\r\nX\r\n\r\n",
    "0\r\n: y\r\n\r\n",
    "0\r\nX: y\n\r\n",
    "0\r\nX: \0\r\n\r\n",
    "0\r\nX: y\rZ: z\r\n\r\n",
    "0\r\nContent-Length: 5\r\n\r\n",
    "0\r\ntransfer-encoding: chunked\r\n\r\n",
    "0\r\nHost: evil.example\r\n\r\n",
    "0\r\nGET /evil HTTP/1.1\r\n\r\n",
];

/// Whole heads of requests that are refused.
const REQUESTS: &[&str] = &[
    // Start lines.
    "GET {u}  HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET  {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    " GET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1 \r\nHost: {h}\r\n\r\n",
    "GET\t{u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\tHTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} x HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1 HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\r\nHost: {h}\r\n\r\n",
    "GET {u} \r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.2\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/2.0\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/0.9\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.10\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/01.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1,1\r\nHost: {h}\r\n\r\n",
    "GET {u} http/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP /1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1\r\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1\nHost: {h}\n\n",
    "GET {u}\0 HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\r HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\n HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\u{e9} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}\u{7f} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u}#x HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "\0GET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "\nGET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "\rGET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "\r\n GET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "G(T {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET: {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1 GET {e} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    // Targets.
    "GET /{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET {h}/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http:/{h}/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http:{h}/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http:///{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET ftp://{h}/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http://evil.example@{h}/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http://{h}\\@evil.example/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http://{h}:80/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "GET http://{h},evil.example/{n} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "CONNECT {u} HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "CONNECT {h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "CONNECT {h} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\n\r\nabcde",
    "CONNECT {h} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    // Host.
    "GET {u} HTTP/1.1\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}\r\nHost: {h}\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}\r\nX: y\r\nhost: evil.example\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}\r\nHost:\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h} evil.example\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}, evil.example\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}/evil\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: evil@{h}\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost : {h}\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}\r\n evil.example\r\n\r\n",
    "GET {u} HTTP/1.1\r\n Host: {h}\r\n\r\n",
    "GET {u} HTTP/1.1\r\nHost: {h}\0\r\n\r\n",
    "GET {u} HTTP/1.0\r\nHost: {h}\r\nHost: evil.example\r\n\r\n",
    // HTTP/1.0 has no codings.
    "POST {u} HTTP/1.0\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {u} HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
    "POST {u} HTTP/1.0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
];

/// Requests that are fine, however they look, and the body that is meant; what
/// follows may or may not be a request.
const MEANT: &[(&str, &str)] = &[
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 34\r\n\r\nGET /evil HTTP/1.1\r\n\
             Host: evil\r\n\r\n{e}",
        "GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n22\r\n\
             GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n\r\n0\r\n\r\n",
        "GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n0\r\n\r\n\r\n\
             5\r\n0\r\n\r\n\r\n0\r\n\r\n",
        "0\r\n\r\n0\r\n\r\n",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;GET /evil HTTP/1.1\r\nabc\r\n0;x=\"y\"\r\n\r\n",
        "abc",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\
             X-T: y\r\nGET: /evil HTTP/1.1\r\n\r\n",
        "abc",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n00003\r\nabc\r\n\
             000\r\n\r\n",
        "abc",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\ntransfer-encoding:\t cHunKED \t\r\n\r\n3\r\nabc\r\n\
             0\r\n\r\n",
        "abc",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 005\r\n\r\nabcde",
        "abcde",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length:5 \t\r\n\r\nabcde",
        "abcde",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 0\r\n\r\nabcde",
        "",
    ),
    ("POST {u} HTTP/1.1\r\nHost: {h}\r\n\r\nabcde\r\n\r\n", ""),
    (
        "GET {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\n\r\nabcde",
        "abcde",
    ),
    (
        "DELETE {u} HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "a",
    ),
    (
        "HEAD {u} HTTP/1.1\r\nHost: {h}\r\nContent-Length: 5\r\n\r\nabcde",
        "abcde",
    ),
    ("\r\nGET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n", ""),
    ("GET {u} HTTP/1.1\r\nHost: {h}\r\n\r\n\r\n", ""),
    ("GET {u} HTTP/1.1\r\nHost: evil.example\r\n\r\n", ""),
    ("GET {u} HTTP/1.1\r\nHost:\r\n\r\n", ""),
    ("GET {u} HTTP/1.0\r\n\r\n", ""),
    (
        "GET {u} HTTP/1.0\r\nX: y\r\n\r\nGET {e} HTTP/1.0\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.0\r\nContent-Length: 5\r\n\r\nabcdeGET {e} HTTP/1.0\r\n\r\n",
        "abcde",
    ),
    (
        "GET {u} HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\nGET {e} HTTP/1.1\r\n\
             Host: {h}\r\n\r\n",
        "",
    ),
    // Not those fields.
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nContent_Length: 5\r\n\r\nabcde\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nX-Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTE: chunked\r\n\r\n0\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nX: Content-Length: 5\r\n\r\nabcde\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nTrailer: Content-Length\r\n\
             Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "",
    ),
    // Named by Connection.
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nConnection: content-length\r\nContent-Length: 5\r\n\
             \r\nabcde",
        "abcde",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nConnection: Transfer-Encoding\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "a",
    ),
    (
        "POST {u} HTTP/1.1\r\nConnection: host, x\r\nHost: {h}\r\nX: y\r\nContent-Length: 1\r\n\
             \r\na",
        "a",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nConnection: close, content-length\r\n\
             Content-Length: 5\r\n\r\nabcde",
        "abcde",
    ),
    // Expectations and upgrades that come to nothing.
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde",
        "abcde",
    ),
    (
        "GET {u} HTTP/1.1\r\nHost: {h}\r\nExpect: 100-continue\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nExpect: 100-continue\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "a",
    ),
    (
        "GET {u} HTTP/1.1\r\nHost: {h}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
             \x01\x02 /evil\r\n\r\n",
        "",
    ),
    (
        "GET {u} HTTP/1.1\r\nHost: {h}\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "",
    ),
    (
        "POST {u} HTTP/1.1\r\nHost: {h}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\
             Content-Length: 5\r\n\r\nabcde",
        "abcde",
    ),
];

#[test]
fn no_request_is_hidden_in_another() {
    hide_requests(false);
}

#[test]
fn no_request_is_hidden_in_another_on_the_way_to_a_parent() {
    hide_requests(true);
}

fn hide_requests(to_parent: bool) {
    let field = |fields: &&str| format!("POST {{u}} HTTP/1.1\r\nHost: {{h}}\r\n{fields}");
    let chunks = |body: &&str| {
        format!("POST {{u}} HTTP/1.1\r\nHost: {{h}}\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
    };
    let bad = FIELDS.iter().chain(SPACED).map(field);
    let bad = bad.chain(CHUNKS.iter().map(chunks));
    let bad = bad.chain(REQUESTS.iter().map(|&request| request.to_owned()));
    let bad = bad.map(|text| {
        (
            format!("{text}GET {{e}} HTTP/1.1\r\nHost: {{h}}\r\n\r\n"),
            None,
        )
    });
    let good = MEANT
        .iter()
        .map(|&(text, body)| (text.to_owned(), Some(body)));
    let cases: Vec<(String, Option<&str>)> = bad.chain(good).collect();
    assert!(cases.len() > 200);

    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let recorder = Recorder::start(|_| (ok.to_vec(), ok.len()));
    let host = recorder.origin.authority();
    let parent = format!("via = \"p\"\n[[parent]]\nname = \"p\"\nurl = \"http://{host}\"\n");
    let parent = if to_parent { &parent[..] } else { "" };
    let proxy = Proxyd::with_config(recorder.origin.address, parent);
    let mut told = BTreeMap::new();
    // In one piece, byte by byte, and cut where the body begins.
    for way in 0..3 {
        for (index, (text, _)) in cases.iter().enumerate() {
            let number = way * 1000 + index;
            let text = fill(text, &host, number);
            let conn = Conn::dial(proxy.address("http"));
            send(&conn, text.as_bytes(), way);
            conn.fin();
            told.insert(number, conn.rest());
        }
    }
    proxy.settle();
    let got = recorder.finish(proxy);
    let mut arrived: BTreeMap<usize, Vec<Message>> = BTreeMap::new();
    for bytes in &got {
        let shown = || bytes.escape_ascii().to_string();
        let (messages, _) =
            requests(bytes, &host).unwrap_or_else(|why| panic!("{why}: {}", shown()));
        assert!(messages.len() <= 1, "two requests in {}", shown());
        for message in messages {
            assert_eq!(message.start.contains(" http://"), to_parent, "{}", shown());
            let number = message.path().parse();
            let number = number.unwrap_or_else(|_| panic!("not meant: {}", shown()));
            arrived.entry(number).or_default().push(message);
        }
    }
    let mut wrong = Vec::new();
    for (number, (answer, _)) in told {
        let (text, body) = &cases[number % 1000];
        let head = text.starts_with("HEAD ");
        let statuses = match responses(&answer, &[head]) {
            Ok(answers) => answers.into_iter().map(|answer| answer.status()).collect(),
            Err(why) => vec![why],
        };
        let arrived = arrived.remove(&number).unwrap_or_default();
        let well = match body {
            None => arrived.is_empty() && statuses.len() == 1 && is_error(&statuses[0]),
            Some(body) => {
                let meant = fill(body, &host, number);
                arrived.len() == 1
                    && arrived[0].body == meant.as_bytes()
                    && statuses.first().is_some_and(|status| status == "200")
                    && statuses[1..].iter().all(|status| is_error(status))
                    && statuses.len() <= 2
            }
        };
        if !well {
            wrong.push(format!(
                "{number} {text:?}: told {statuses:?}, arrived {arrived:?}\n"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

/// Answers that are refused, apart from their fields and bodies.
const ANSWERS: &[&str] = &[
    "HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1\t200 OK\r\nContent-Length: 0\r\n\r\n",
    " HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 +20 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "ICY 200 OK\r\n\r\n",
    "<html>hello</html>",
    "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 100 Continue\r\nContent Length: 5\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length : 5\r\nContent-Length: 5\r\n\r\nabcde",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding\t: gzip\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
];

/// Answers that are fine, and the body that is meant; what the origin sends
/// behind them is nobody's answer.
const TOLD: &[(&str, &str)] = &[
    ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "ok",
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nT: t\r\n\r\n",
        "ok",
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\nHTTP/1.1 200 OK\r\nX-Evil: in the body\r\n",
        "HTTP/1.1 200 OK\r\nX-Evil: in the body",
    ),
    ("HTTP/1.1 204 No Content\r\n\r\n", ""),
    ("HTTP/1.1 204 No Content\r\nContent-Length: 60\r\n\r\n", ""),
    (
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        "",
    ),
    (
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 60\r\n\r\n",
        "",
    ),
    (
        "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
        "",
    ),
    (
        "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
        "",
    ),
    (
        "HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 2\r\n\r\nok",
        "ok",
    ),
    (
        "HTTP/1.1 200 OK\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\n\r\n",
        "ok",
    ),
    (
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        "ok",
    ),
    (
        "HTTP/1.1 200 OK\r\nContent_Length: 9\r\nContent-Length: 2\r\n\r\nok",
        "ok",
    ),
    ("HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", "ok"),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding\t: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "ok",
    ),
    (
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 2\r\n\r\nok",
        "ok",
    ),
    (
        "HTTP/1.1 204 No Content\r\nContent-Length \t: 60\r\n\r\n",
        "",
    ),
];

#[test]
fn no_answer_is_hidden_in_another() {
    let field = |fields: &&str| format!("HTTP/1.1 200 OK\r\n{fields}");
    let chunks =
        |body: &&str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let bad = FIELDS.iter().map(field);
    let bad = bad.chain(CHUNKS.iter().map(chunks));
    let bad = bad.chain(ANSWERS.iter().map(|&answer| answer.to_owned()));
    let bad = bad.map(|text| (text, None));
    let good = TOLD
        .iter()
        .map(|&(text, body)| (text.to_owned(), Some(body)));
    let cases: Arc<Vec<(String, Option<&str>)>> = Arc::new(bad.chain(good).collect());
    assert!(cases.len() > 150);

    let script = cases.clone();
    let recorder = Recorder::start(move |path| match path.parse::<usize>() {
        Ok(number) => {
            let (text, meant) = &script[number % 1000];
            let evil = "HTTP/1.1 200 OK\r\nX-Evil: y\r\nContent-Length: 4\r\n\r\nevil";
            match (number < 1000, meant) {
                (true, _) => (format!("{text}{evil}").into_bytes(), usize::MAX),
                // What comes late is the answer to whatever was asked by then.
                (false, Some(_)) => (text.clone().into_bytes(), 1),
                (false, None) => (format!("{text}{evil}").into_bytes(), 1),
            }
        }
        Err(_) => {
            let honest = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhonest";
            (honest.to_vec(), usize::MAX)
        }
    });
    let host = recorder.origin.authority();
    let toml = "timeouts.first_byte = \"1s\"\ntimeouts.progress = \"1s\"\nworkers = 1";
    let proxy = Proxyd::with_config(recorder.origin.address, toml);
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let one = |index: usize| {
        let (text, body) = &cases[index];
        for (method, number) in [("GET", index), ("HEAD", index), ("GET", 1000 + index)] {
            let conn = Conn::dial(proxy.address("http"));
            let text_of = |method, path: &str| {
                format!("{method} http://{host}/{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
            };
            // The second one waits for the evil answer, if there were one.
            conn.send(text_of(method, &number.to_string()) + &text_of("GET", "honest"));
            conn.fin();
            let (answer, how) = conn.rest();
            let head = method == "HEAD";
            let problem = match responses(&answer, &[head, false]) {
                Err(why) => Some(why),
                Ok(answers) => judge(
                    &answers,
                    how,
                    body.map(|body| if head { "" } else { body }),
                    head,
                )
                .map(str::to_owned),
            };
            if let Some(problem) = problem {
                let answer = answer.escape_ascii();
                wrong
                    .lock()
                    .expect("no panic")
                    .push(format!("{method} {number} {text:?}: {problem}: {answer}\n"));
            }
            // Nor is it for anybody else.
            let conn = Conn::dial(proxy.address("http"));
            conn.send(text_of("GET", "honest"));
            assert_eq!(support::Answer::read(&conn).body, b"honest", "{text}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= cases.len() {
                        return;
                    }
                    one(index);
                }
            });
        }
    });
    recorder.finish(proxy);
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

/// What is wrong with the answers to a bad or good case and an honest request.
fn judge(answers: &[Message], how: Ended, meant: Option<&str>, head: bool) -> Option<&'static str> {
    let (first, second) = (answers.first(), answers.get(1));
    if answers
        .iter()
        .any(|answer| answer.field("x-evil").is_some())
    {
        return Some("the evil answer");
    }
    if second.is_some_and(|second| second.body != b"honest") {
        return Some("not the honest answer");
    }
    match (meant, first) {
        (_, None) => Some("no answer"),
        (Some(meant), Some(first)) if first.body == meant.as_bytes() => match second {
            Some(_) => None,
            None => Some("the honest answer is missing"),
        },
        (Some(_), Some(_)) => Some("not the body that was meant"),
        (None, Some(first)) if first.status() == "502" => None,
        // Cut where it went wrong; in answer to HEAD chunks are nobody's.
        (None, Some(first)) if first.status() == "200" && (head || !first.whole) => None,
        (None, Some(_)) => match how {
            Ended::Reset => Some("a reset"),
            _ => Some("it looks complete"),
        },
    }
}

/// Puts host, number and addresses in their places.
fn fill(text: &str, host: &str, number: usize) -> String {
    let text = text
        .replace("{u}", "http://{h}/{n}")
        .replace("{e}", "http://{h}/evil");
    text.replace("{h}", host)
        .replace("{n}", &number.to_string())
}

fn send(conn: &Conn, bytes: &[u8], way: usize) {
    let body = support::find(bytes, b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    match way {
        0 => conn.send_anyway(bytes),
        1 => bytes.chunks(1).for_each(|byte| conn.send_anyway(byte)),
        _ => {
            conn.send_anyway(&bytes[..body]);
            std::thread::sleep(std::time::Duration::from_millis(1));
            conn.send_anyway(&bytes[body..]);
        }
    }
}

/// An origin that writes down what it gets.
struct Recorder {
    origin: Origin,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    connections: Vec<Vec<u8>>,
    running: usize,
}

impl Recorder {
    /// Answers each request with what `answer` says to its path, in pieces of
    /// the size it says.
    fn start(answer: impl Fn(&str) -> (Vec<u8>, usize) + Send + Sync + 'static) -> Self {
        let log = Arc::new(Mutex::new(Log::default()));
        let own = log.clone();
        let origin = Origin::start(move |mut socket| {
            own.lock().expect("no panic").running += 1;
            let mut bytes = Vec::new();
            let mut answered = 0;
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = socket.read(&mut piece) {
                bytes.extend_from_slice(&piece[..count]);
                while let Ok((message, used)) = request(&bytes[answered..]) {
                    answered += used;
                    let (answer, size) = answer(message.path());
                    for piece in answer.chunks(size) {
                        drop(socket.write_all(piece));
                    }
                }
            }
            let mut log = own.lock().expect("no panic");
            log.connections.push(bytes);
            log.running -= 1;
        });
        Self { origin, log }
    }

    /// Stops the proxy; all that came by then, connection by connection.
    fn finish(self, proxy: Proxyd) -> Vec<Vec<u8>> {
        // With the connections that it keeps for further requests.
        let stopped = proxy.stop();
        assert!(stopped.status.success(), "{stopped}");
        // Whatever came before this one has been accepted.
        let last = Conn::dial(self.origin.address);
        last.send("the last one");
        last.fin();
        let last = || {
            let log = self.log.lock().expect("no panic");
            let came = log.connections.iter().any(|bytes| bytes == b"the last one");
            came && log.running == 0
        };
        wait_for("the end of all connections", last);
        let mut log = self.log.lock().expect("no panic");
        log.connections.retain(|bytes| bytes != b"the last one");
        std::mem::take(&mut log.connections)
    }
}

/// A message as the strict parser reads it.
#[derive(Debug, Default)]
struct Message {
    start: String,
    fields: Vec<(String, String)>,
    /// Without chunks.
    body: Vec<u8>,
    /// Its end was there.
    whole: bool,
}

impl Message {
    fn field(&self, name: &str) -> Option<&str> {
        let mut found = self
            .fields
            .iter()
            .filter(|(own, _)| own.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| &value[..])
    }

    /// The path of the target without its slash.
    fn path(&self) -> &str {
        let target = self.start.split(' ').nth(1).unwrap_or_default();
        target.rsplit('/').next().unwrap_or_default()
    }

    fn status(&self) -> String {
        self.start.split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

fn is_error(status: &str) -> bool {
    matches!(status.parse(), Ok(400..=599))
}

/// Why the strict parser does not go on.
#[derive(Debug)]
enum Stop {
    Bad(String),
    More(Message),
}

/// All whole requests in `bytes`, and the bytes of one that was cut; an error
/// if anything is not beyond doubt.
fn requests<'b>(mut bytes: &'b [u8], host: &str) -> Result<(Vec<Message>, &'b [u8]), String> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        match request(bytes) {
            Ok((message, used)) => {
                if message.field("host") != Some(host) {
                    return Err("another host".into());
                }
                messages.push(message);
                bytes = &bytes[used..];
            }
            Err(Stop::More(_)) => break,
            Err(Stop::Bad(why)) => return Err(why),
        }
    }
    Ok((messages, bytes))
}

/// The request at the front of `bytes`, and its length.
fn request(bytes: &[u8]) -> Result<(Message, usize), Stop> {
    let (mut message, used) = head(bytes)?;
    let words: Vec<&str> = message.start.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return bad(format!("start line {:?}", message.start));
    };
    if !is_token(method)
        || !(target.starts_with('/') || target.starts_with("http://"))
        || !target.bytes().all(|b| b.is_ascii_graphic())
    {
        return bad(format!("start line {:?}", message.start));
    }
    for name in ["proxy-authorization", "proxy-connection", "keep-alive"] {
        if message.field(name).is_some() {
            return bad(format!("field {name}"));
        }
    }
    if message
        .fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .count()
        != 1
    {
        return bad("not one Host");
    }
    let length = framing(&message)?;
    let used = used + body(&mut message, &bytes[used..], length.unwrap_or(Some(0)))?;
    Ok((message, used))
}

/// All answers in `bytes`; the last may be cut. `heads` tells which of the
/// requests were HEAD.
fn responses(mut bytes: &[u8], heads: &[bool]) -> Result<Vec<Message>, String> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let head_only = heads.get(answers.len()).copied().unwrap_or(false);
        match response(bytes, head_only) {
            Ok((answer, used)) => {
                bytes = &bytes[used..];
                if !answer.status().starts_with('1') {
                    answers.push(answer);
                }
            }
            Err(Stop::More(answer)) => {
                answers.push(answer);
                break;
            }
            Err(Stop::Bad(why)) => return Err(why),
        }
    }
    Ok(answers)
}

fn response(bytes: &[u8], head_only: bool) -> Result<(Message, usize), Stop> {
    let (mut answer, used) = head(bytes)?;
    let status = answer.start.strip_prefix("HTTP/1.1 ").unwrap_or_default();
    let (code, reason) = status.split_at_checked(3).unwrap_or_default();
    if !matches!(code.parse(), Ok(100..=599)) || !reason.starts_with(' ') {
        return bad(format!("status line {:?}", answer.start));
    }
    let code: u16 = code.parse().expect("just parsed");
    let length = framing(&answer)?;
    if length.is_some() && matches!(code, 100..=199 | 204) {
        return bad("framing where none may be");
    }
    let none = head_only || matches!(code, 100..=199 | 204 | 304);
    let used = match (none, length) {
        (true, _) => {
            answer.whole = true;
            used
        }
        (false, Some(length)) => used + body(&mut answer, &bytes[used..], length)?,
        (false, None) => {
            if answer.field("connection") != Some("close") {
                return bad("no way to tell where it ends");
            }
            answer.body = bytes[used..].to_vec();
            answer.whole = true;
            bytes.len()
        }
    };
    Ok((answer, used))
}

fn head(bytes: &[u8]) -> Result<(Message, usize), Stop> {
    let Some(end) = support::find(bytes, b"\r\n\r\n") else {
        let odd = bytes
            .iter()
            .any(|b| b.is_ascii_control() && !b"\r\n\t".contains(b));
        return if odd {
            bad("a control character")
        } else {
            Err(Stop::More(Message::default()))
        };
    };
    let text = bytes[..end]
        .iter()
        .map(|&b| char::from(b))
        .collect::<String>();
    let mut lines = text.split("\r\n");
    let mut message = Message {
        start: lines.next().unwrap_or_default().into(),
        ..Message::default()
    };
    for line in text.split("\r\n") {
        if line.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            return bad(format!("a control character in {line:?}"));
        }
    }
    for line in lines {
        match line.split_once(':') {
            Some((name, value)) if is_token(name) => {
                message
                    .fields
                    .push((name.into(), value.trim_matches([' ', '\t']).into()));
            }
            _ => return bad(format!("the field {line:?}")),
        }
    }
    Ok((message, end + 4))
}

/// `None`: not told; `Some(None)`: chunked; else the length.
#[expect(clippy::option_option, reason = "three cases, used at once")]
fn framing(message: &Message) -> Result<Option<Option<usize>>, Stop> {
    let of = |name: &'static str| {
        let fields = message.fields.iter();
        fields
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| &value[..])
    };
    let lengths: Vec<&str> = of("content-length").collect();
    let codings: Vec<&str> = of("transfer-encoding").collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(None),
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(None)),
        ([length], []) if is_number(length) => Ok(Some(Some(length.parse().expect("digits")))),
        _ => bad(format!("framing {lengths:?} {codings:?}")),
    }
}

/// Takes the body from the front of `bytes`; says how long it is there.
fn body(message: &mut Message, bytes: &[u8], length: Option<usize>) -> Result<usize, Stop> {
    if let Some(length) = length {
        message.whole = bytes.len() >= length;
        message.body = bytes[..length.min(bytes.len())].to_vec();
        return if message.whole {
            Ok(length)
        } else {
            Err(Stop::More(std::mem::take(message)))
        };
    }
    let mut at = 0;
    while let Some(line) = line(&bytes[at..])? {
        let (size, extension) = line.split_once(';').unwrap_or((line, ""));
        let hex = (1..=15).contains(&size.len()) && size.bytes().all(|b| b.is_ascii_hexdigit());
        if !hex
            || extension
                .bytes()
                .any(|b| b.is_ascii_control() && b != b'\t')
        {
            return bad(format!("the chunk {line:?}"));
        }
        at += line.len() + 2;
        let size = usize::from_str_radix(size, 16).expect("few digits");
        if size == 0 {
            return trailers(message, bytes, at);
        }
        let rest = &bytes[at..];
        message
            .body
            .extend_from_slice(&rest[..size.min(rest.len())]);
        match rest.get(size..size.saturating_add(2)) {
            Some(b"\r\n") => at += size + 2,
            Some(_) => return bad("no line end behind a chunk"),
            None => break,
        }
    }
    Err(Stop::More(std::mem::take(message)))
}

fn trailers(message: &mut Message, bytes: &[u8], mut at: usize) -> Result<usize, Stop> {
    while let Some(line) = line(&bytes[at..])? {
        at += line.len() + 2;
        if line.is_empty() {
            message.whole = true;
            return Ok(at);
        }
        let name = line.split_once(':').map_or("", |(name, _)| name);
        let frames = ["content-length", "transfer-encoding", "host"];
        if !is_token(name) || frames.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return bad(format!("the trailer {line:?}"));
        }
    }
    Err(Stop::More(std::mem::take(message)))
}

/// The line at the front of `bytes`, if its end is there.
fn line(bytes: &[u8]) -> Result<Option<&str>, Stop> {
    let Some(end) = bytes
        .iter()
        .position(|b| b.is_ascii_control() && *b != b'\t')
    else {
        return Ok(None);
    };
    match bytes.get(end..end + 2) {
        Some(b"\r\n") => match std::str::from_utf8(&bytes[..end]) {
            Ok(line) => Ok(Some(line)),
            Err(_) => bad("not text"),
        },
        None if bytes[end] == b'\r' => Ok(None),
        _ => bad("a control character in a line of chunks"),
    }
}

fn bad<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Bad(why.into()))
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_number(text: &str) -> bool {
    (1..=18).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}
