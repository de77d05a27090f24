//! A port relay for datagrams: what comes to a socket goes to a target, and the
//! answers back.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use proxy_core::{Peer, Stop, StopState, TargetBuf};
use tokio::net::UdpSocket;

use super::batch::{self, Datagram, Room};
use super::flow::{self, Flow, Key, Start};
use super::policy::Datagrams;
use super::socket::Socket;
use crate::deadline::{Deadline, Ticks};

/// Serves a socket by relaying what comes to it to a fixed target.
///
/// Each address that sends to the socket has a flow of its own, with a socket of
/// its own towards the target; what the target answers there goes back from the
/// address of ours that the client has sent to. Policy is asked at the beginning
/// of a flow: whether it takes datagrams from there at all
/// ([`Datagrams::takes`]), then the client is authenticated without credentials
/// and authorized for [`Operation::Associate`](proxy_core::Operation::Associate),
/// and the target is judged by [`Datagrams::admit`], once; meanwhile four
/// datagrams wait. A refusal holds for half a minute, that a target was not to be
/// had for two seconds.
///
/// Of [`Gateway::shaping`](proxy_core::Gateway::shaping) the lifetime and the rates
/// count; what is beyond them is dropped.
///
/// A flow ends when nothing was relayed for the [`idle`](Self::idle) time, or
/// when it has to make room: flows count as [`Associations`](crate::Associations)
/// of the gateway, with its caps. Datagrams of those for whom there is no room,
/// and of other sockets of the proxy's own, are dropped.
///
/// ```
/// # use proxy_core::Target;
/// # use proxy_relay::{DatagramMap, Datagrams};
/// # async fn example(gateway: impl Datagrams) -> Result<(), Box<dyn std::error::Error>> {
/// let socket = tokio::net::UdpSocket::bind("127.0.0.1:5353").await?;
/// let map = DatagramMap::new(gateway, Target::parse("192.0.2.53:53", None)?.into());
/// map.serve(socket).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramMap<G> {
    gateway: G,
    target: TargetBuf,
    idle: Ticks,
    stop: Stop,
}

impl<G> DatagramMap<G> {
    /// A relay to `target`, whose flows may be idle for five minutes (RFC 4787
    /// section 4.3).
    pub fn new(gateway: G, target: TargetBuf) -> Self {
        Self {
            gateway,
            target,
            idle: IDLE.into(),
            stop: Stop::never(),
        }
    }

    /// How long a flow may be without a datagram in either direction; `None` has
    /// no end. In steps of a quarter of a second.
    pub fn idle(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.idle = after.into().into();
        self
    }

    /// The token that ends its flows. While it drains no new ones begin, and
    /// each ends once it has been silent for a second.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.stop = stop;
        self
    }

    /// The policy it was made with.
    pub fn gateway(&self) -> &G {
        &self.gateway
    }
}

impl<G: Datagrams> DatagramMap<G> {
    /// Relays until the token stops it, or drains and the last flow has ended;
    /// without a token, for ever.
    ///
    /// [`Gateway::finished`](proxy_core::Gateway::finished) is called at the end
    /// of each flow.
    ///
    /// # Cancel safety
    /// Dropping the future ends all flows, which are then not reported.
    ///
    /// # Errors
    /// If the socket cannot be used. What happens to datagrams is no error.
    pub async fn serve(&self, socket: UdpSocket) -> io::Result<()> {
        let front = Socket::new(socket)?;
        let local = front.local_addr()?;
        let _listens = self.gateway.associations().listens(local);
        let mut serving = Serving {
            map: self,
            local,
            deadline: Deadline::new(self.stop.clone()),
            front,
            flows: HashMap::new(),
            running: FuturesUnordered::new(),
            begin: |start| flow::run(&self.gateway, &self.target, start),
        };
        poll_fn(|cx| serving.poll(cx)).await;
        Ok(())
    }
}

struct Serving<'m, G, B, F> {
    map: &'m DatagramMap<G>,
    local: SocketAddr,
    /// Only to hear of a stop.
    deadline: Deadline,
    front: Arc<Socket>,
    flows: HashMap<Key, Arc<Flow>>,
    running: FuturesUnordered<F>,
    begin: B,
}

impl<G, B, F> Serving<'_, G, B, F>
where
    G: Datagrams,
    B: Fn(Start) -> F,
    F: Future<Output = Key>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_stopped = self.deadline.poll(cx).is_ready();
        batch::lend(|room| self.pull(cx, room));
        // Behind that, since flows may have begun.
        while let Poll::Ready(Some(key)) = self.running.poll_next_unpin(cx) {
            self.flows.remove(&key);
        }
        let is_closing = is_stopped || self.map.stop.state() != StopState::Running;
        match is_closing && self.running.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Takes what clients have sent.
    fn pull(&mut self, cx: &mut Context<'_>, room: &mut Room) {
        let Room { inbox, outbox } = room;
        for _ in 0..BATCHES {
            match inbox.poll_fill(cx, &self.front) {
                Poll::Pending => return,
                // It tells of an answer that did not arrive.
                Poll::Ready(Err(_)) => continue,
                Poll::Ready(Ok(())) => {}
            }
            let mut at_hand: Option<Arc<Flow>> = None;
            for datagram in inbox.datagrams() {
                let key = self.key(datagram);
                if at_hand.as_ref().is_none_or(|flow| flow.key != key) {
                    if let Some(flow) = at_hand.take() {
                        flow.credit(outbox.flush());
                    }
                    at_hand = self.flow(key);
                }
                if let Some(flow) = &at_hand {
                    flow.take(datagram.bytes, outbox);
                }
            }
            if let Some(flow) = at_hand {
                flow.credit(outbox.flush());
            }
        }
        // There may be more; others first.
        cx.waker().wake_by_ref();
    }

    fn key(&self, datagram: Datagram<'_>) -> Key {
        Key {
            client: datagram.from,
            to: datagram.to.filter(|_| self.local.ip().is_unspecified()),
        }
    }

    /// The flow of that key, which begins if there is none; `None` if there is no
    /// room for it.
    fn flow(&mut self, key: Key) -> Option<Arc<Flow>> {
        if let Some(flow) = self.flows.get(&key) {
            return Some(Arc::clone(flow));
        }
        let gateway = &self.map.gateway;
        if self.map.stop.state() != StopState::Running || !gateway.takes(key.client) {
            return None;
        }
        let associations = gateway.associations();
        // Two of the proxy's own sockets would go on answering one another.
        if associations.has(key.client) {
            return None;
        }
        let stop = self.map.stop.child();
        let Some(place) = associations.join(key.client.ip(), stop.clone(), QUIET) else {
            gateway.crowded_out(key.client);
            return None;
        };
        let flow = Flow::new(key, &place);
        self.running.push((self.begin)(Start {
            flow: Arc::clone(&flow),
            place,
            peer: Peer {
                remote: key.client,
                local: SocketAddr::new(
                    key.to.unwrap_or_else(|| self.local.ip()),
                    self.local.port(),
                ),
            },
            front: Arc::clone(&self.front),
            idle: self.map.idle,
            stop,
        }));
        self.flows.insert(key, Arc::clone(&flow));
        Some(flow)
    }
}

/// Batches of one socket in one go.
const BATCHES: usize = 2;

/// A flow that has been idle for so long may have to make room. Many a client
/// takes a new port for each question.
const QUIET: Duration = Duration::from_secs(1);

const IDLE: Duration = Duration::from_secs(300);
