//! Messages as hyper reads them, on a stream in memory and without a runtime.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};

use super::{Message, Reading};

pub(crate) fn request(input: &[u8]) -> Reading {
    let seen = RefCell::new(None);
    let service = service_fn(|request: Request<Incoming>| {
        Box::pin(async {
            let method = request.method().to_string();
            let content = content(request.into_body()).await;
            *seen.borrow_mut() = Some((method, content));
            Ok::<_, Infallible>(Response::new(Nothing))
        })
    });
    let stream = Stream {
        bytes: input,
        read: 0,
        ends: false,
        asked: true,
        waiting: None,
    };
    let mut connection = server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_headers(MOST_FIELDS)
        .serve_connection(stream, service);
    let over = run(poll_fn(|cx| connection.poll_without_shutdown(cx)));
    let parts = connection.into_parts();
    let end = parts.io.read - parts.read_buf.len();
    conclude(seen.take(), over, end)
}

pub(crate) fn response(input: &[u8], method: &str) -> Reading {
    let stream = Stream {
        bytes: input,
        read: 0,
        ends: true,
        asked: false,
        waiting: None,
    };
    let mut builder = client::conn::http1::Builder::new();
    builder.max_headers(MOST_FIELDS);
    let Some(Ok((mut sender, mut connection))) = run(builder.handshake(stream)) else {
        panic!("a handshake of nothing");
    };
    let request = Request::builder().method(method).body(Nothing);
    let sending = sender.send_request(request.expect("a request"));
    let mut seen = None;
    let mut over = None;
    {
        let mut receiving = pin!(async {
            let response = sending.await?;
            let status = response.status().as_u16().to_string();
            Ok((status, content(response.into_body()).await))
        });
        run(poll_fn(|cx| {
            if over.is_none()
                && let Poll::Ready(result) = connection.poll_without_shutdown(cx)
            {
                over = Some(result);
            }
            if seen.is_none()
                && let Poll::Ready(result) = receiving.as_mut().poll(cx)
            {
                seen = Some(result);
            }
            match (&seen, &over) {
                (Some(_), Some(_)) => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
    }
    let parts = connection.into_parts();
    let end = parts.io.read - parts.read_buf.len();
    match seen {
        Some(Ok(seen)) => conclude(Some(seen), None, end),
        Some(Err(error)) => conclude(None, Some(Err(error)), end),
        None => conclude(None, over, end),
    }
}

type Seen = (String, Result<Vec<u8>, hyper::Error>);

fn conclude(seen: Option<Seen>, over: Option<hyper::Result<()>>, end: usize) -> Reading {
    let error = match (seen, over) {
        (Some((what, Ok(content))), _) => {
            return Reading::Message(Message { what, content, end });
        }
        (Some((_, Err(error))), _) | (None, Some(Err(error))) => error,
        (None, None | Some(Ok(()))) => return Reading::Partial,
    };
    match is_cut_off(&error) {
        true => Reading::Partial,
        false => Reading::Refused(format!("{error:?}")),
    }
}

/// Whether the stream ended too early.
fn is_cut_off(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::UnexpectedEof;
        }
        source = error.source();
    }
    error.is_incomplete_message()
}

async fn content(body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut body = pin!(body);
    let mut content = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            content.extend_from_slice(&data);
        }
    }
    Ok(content)
}

/// Polls as long as there is a reason to.
fn run<F: Future>(future: F) -> Option<F::Output> {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    while woken.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
    }
    None
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream of bytes that are all here; what is written is dropped.
struct Stream<'b> {
    bytes: &'b [u8],
    read: usize,
    /// Whether the stream ends behind the bytes, or just pauses.
    ends: bool,
    /// The bytes come once something was written.
    asked: bool,
    waiting: Option<Waker>,
}

impl Read for Stream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.bytes[self.read..];
        if !self.asked || (rest.is_empty() && !self.ends) {
            self.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..n]);
        self.read += n;
        Poll::Ready(Ok(()))
    }
}

impl Write for Stream<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !std::mem::replace(&mut self.asked, true)
            && let Some(waiting) = self.waiting.take()
        {
            waiting.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A body that is empty.
struct Nothing;

impl Body for Nothing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// More than we let pass.
const MOST_FIELDS: usize = 1024;
