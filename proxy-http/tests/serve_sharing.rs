//! Who may use an origin connection, and when it is given back, over loopback
//! sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::Duration;

use proxy_core::Timeouts;
use proxy_http::Config;
use support::*;
use tokio::task::JoinSet;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// Waits until the gateway was given a connection back.
async fn given_back(proxy: &Proxy) {
    within(async {
        while proxy.gateway.spare.borrow().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

async fn exchange(client: &mut Client, server: &mut Client, request: &str, answer: &str) {
    client.send(request).await;
    server.until("\r\n\r\n").await;
    server.send(answer).await;
    client.until("hi").await;
}

/// A request of `origin` with further fields.
fn get(origin: &Origin, fields: &str) -> String {
    origin
        .get("/")
        .replace("\r\n\r\n", &format!("\r\n{fields}\r\n"))
}

#[test]
fn an_idle_client_holds_no_origin_connection() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let (mut first, mut second) = (proxy.client().await, proxy.client().await);
        first.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        first.until("hi").await;
        given_back(&proxy).await;
        exchange(&mut second, &mut server, &origin.get("/2"), OK).await;
        given_back(&proxy).await;
        exchange(&mut first, &mut server, &origin.get("/3"), OK).await;
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
        assert_eq!(*proxy.gateway.connects.borrow(), 3);
        // A client that goes on keeps it.
        exchange(&mut first, &mut server, &origin.get("/4"), OK).await;
        assert_eq!(*proxy.gateway.connects.borrow(), 3);
    });
}

#[test]
fn an_idle_client_is_waited_for_as_long_as_ever() {
    run(async {
        let origin = Origin::start().await;
        for (keep_alive, given) in [(200, false), (1_600, true)] {
            let mut timeouts = Timeouts::default();
            timeouts.keep_alive = Some(Duration::from_millis(keep_alive));
            let mut config = Config::default();
            config.timeouts(timeouts);
            let proxy = Proxy::with(Direct::default(), config, ()).await;
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            client.until("hi").await;
            let start = tokio::time::Instant::now();
            if given {
                given_back(&proxy).await;
            }
            assert_eq!(client.rest().await, "");
            let least = Duration::from_millis(keep_alive);
            assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        }
    });
}

#[test]
fn a_connection_that_ends_meanwhile_changes_nothing() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let (mut first, mut second) = (proxy.client().await, proxy.client().await);
        first.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        first.until("hi").await;
        drop(server);
        // Later than the first one's, the second one's time is over.
        second.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        second.until("hi").await;
        given_back(&proxy).await;
        exchange(&mut first, &mut server, &origin.get("/"), OK).await;
        assert_eq!(*proxy.gateway.dials.borrow(), 2);
    });
}

const CHALLENGE: &str = "HTTP/1.1 401 Who\r\nContent-Length: 2\r\n";

#[test]
fn p27_a_login_of_the_connection_keeps_it_for_one_client() {
    run(async {
        let pinning = [
            ("", "WWW-Authenticate: NTLM\r\n"),
            (
                "",
                "Www-Authenticate: Basic realm=\"a\", negotiate YWJj\r\n",
            ),
            (
                "",
                "WWW-Authenticate: Basic realm=\"a\"\r\nWWW-Authenticate: ntlm YWJj\r\n",
            ),
            ("authorization: NTLM YWJj\r\n", "WWW-Authenticate: x\r\n"),
            ("Authorization: Negotiate YWJj\r\n", ""),
            (
                "Authorization: Basic YTph\r\nAuthorization: Negotiate YWJj\r\n",
                "",
            ),
        ];
        // All at once, since each has to wait.
        let mut cases = JoinSet::new();
        for (asked, answered) in pinning {
            cases.spawn_local(keeps_its_own(asked, answered));
        }
        while let Some(done) = within(cases.join_next()).await {
            done.unwrap();
        }
    });
}

async fn keeps_its_own(asked: &'static str, answered: &'static str) {
    let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
    let (mut client, mut other) = (proxy.client().await, proxy.client().await);
    client.send(get(&origin, asked)).await;
    let mut server = origin.accept().await;
    server.until("\r\n\r\n").await;
    server.send([CHALLENGE, answered, "\r\nhi"].concat()).await;
    client.until("\r\n\r\nhi").await;
    // A client that came later has given its own back.
    other.send(origin.get("/other")).await;
    let mut second = origin.accept().await;
    second.until("\r\n\r\n").await;
    second.send(OK).await;
    other.until("hi").await;
    given_back(&proxy).await;
    // This one's is still its own, and ends with its identity.
    exchange(&mut client, &mut server, &origin.get("/mine"), OK).await;
    let login = "Proxy-Authorization: Basic YTph\r\n";
    exchange(&mut client, &mut second, &get(&origin, login), OK).await;
    assert_eq!(server.rest().await, "", "{asked}{answered}");
}

#[test]
fn other_logins_keep_nothing() {
    run(async {
        for (asked, answered) in [
            ("", "WWW-Authenticate: Basic realm=\"NTLM\"\r\n"),
            ("Authorization: Basic TlRMTSA6\r\n", ""),
            (
                "Authorization: Bearer NTLM\r\n",
                "X: WWW-Authenticate: NTLM\r\n",
            ),
        ] {
            let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
            let mut client = proxy.client().await;
            client.send(get(&origin, asked)).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send([CHALLENGE, answered, "\r\nhi"].concat()).await;
            client.until("\r\n\r\nhi").await;
            given_back(&proxy).await;
        }
    });
}

#[test]
fn a_connection_with_a_login_ends_with_its_client() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(get(&origin, "Authorization: NTLM YWJj\r\n"))
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        drop(client);
        assert_eq!(server.rest().await, "");
        assert!(proxy.gateway.spare.borrow().is_none());
    });
}
