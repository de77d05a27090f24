//! A `udp` listener as a worker serves it.

use std::future::poll_fn;
use std::pin::pin;

use proxy_core::{Stop, TargetBuf};
use proxy_relay::DatagramMap;
use tokio::net::UdpSocket;

use crate::config::{Listener, Udp};
use crate::gateway::Proxyd;

/// A listener whose clients are told apart by the addresses that they send from.
pub(crate) struct Flows {
    /// `None` without a target, which the configuration has.
    map: Option<DatagramMap<Proxyd>>,
    stop: Stop,
}

impl Flows {
    pub(crate) fn new(listener: &Listener, gateway: Proxyd, udp: &Udp, stop: &Stop) -> Self {
        let relay = |target: &TargetBuf| {
            let mut map = DatagramMap::new(gateway, target.clone());
            map.idle(listener.idle.unwrap_or(udp.idle))
                .stop(stop.clone());
            map
        };
        Self {
            map: listener.target.as_ref().map(relay),
            stop: stop.clone(),
        }
    }

    /// Relays what comes to `socket`. Once `closing` is over no new flows begin;
    /// it ends with the last of them.
    pub(crate) async fn serve(&self, socket: UdpSocket, closing: impl Future<Output = ()>) {
        let Some(map) = &self.map else {
            return;
        };
        let mut serving = pin!(map.serve(socket));
        let mut closing = pin!(closing);
        let mut is_closing = false;
        let served = poll_fn(|cx| {
            if !is_closing && closing.as_mut().poll(cx).is_ready() {
                is_closing = true;
                // A relay without a flow need not wait for the next tick to hear.
                self.stop.drain();
            }
            serving.as_mut().poll(cx)
        })
        .await;
        if let Err(error) = served {
            let listener = map.gateway().service();
            tracing::error!(listener, %error, "cannot take datagrams");
        }
    }
}
