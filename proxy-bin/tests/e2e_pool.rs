//! The pool of origin connections: who shares one, who must not, how long one is
//! kept.

mod support;

use std::collections::HashSet;
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Accepted, Answer, Conn, Origin, Proxyd, Request, basic, ok};

/// Answers with the number of the connection, its client and the login shown to a
/// proxy.
fn numbered() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |socket| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let peer = socket.peer_addr().expect("connected").ip();
        let mut stream = BufReader::new(socket);
        while let Some(request) = Request::read(&mut stream) {
            let login = request.field("proxy-authorization").unwrap_or("-");
            let text = format!("{number} {peer} {login}");
            let mut to = socket;
            if to.write_all(&ok(text.as_bytes())).is_err() {
                return;
            }
        }
    })
}

/// What [`numbered`] says to a client of its own.
fn ask(proxy: &Proxyd, url: &str, login: Option<&str>) -> Vec<String> {
    let conn = Conn::dial(proxy.address("http"));
    let login = login.map(|login| format!("Proxy-Authorization: {}\r\n", basic(login)));
    let login = login.unwrap_or_default();
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n{login}\r\n"));
    let answer = Answer::read(&conn);
    assert_eq!(answer.status, 200, "{}", answer.head);
    // The connection is given back before the end is told.
    conn.fin();
    conn.rest();
    let text = String::from_utf8(answer.body).expect("text");
    text.split(' ').map(str::to_owned).collect()
}

fn start(origin: &Origin, toml: &str) -> Proxyd {
    Proxyd::with_config(origin.address, &format!("workers = 1\n{toml}"))
}

#[test]
fn p32_users_share_connections_unless_their_sources_differ() {
    let origin = numbered();
    let proxy = start(
        &origin,
        "[[source]]\nname = \"a\"\naddresses = \"127.0.0.61\"\n\
         [[source]]\nname = \"b\"\naddresses = \"127.0.0.62\"\n\
         [[user]]\nname = \"anna\"\npassword = \"x\"\nsource = \"a\"\n\
         [[user]]\nname = \"anton\"\npassword = \"x\"\nsource = \"a\"\n\
         [[user]]\nname = \"bert\"\npassword = \"x\"\nsource = \"b\"\n\
         [[user]]\nname = \"carl\"\npassword = \"x\"\n",
    );
    let mut numbers: Vec<HashSet<String>> = vec![HashSet::new(); 4];
    for _ in 0..3 {
        for (at, (user, from)) in [
            ("anna", "127.0.0.61"),
            ("bert", "127.0.0.62"),
            ("carl", "127.0.0.1"),
            ("anton", "127.0.0.61"),
        ]
        .into_iter()
        .enumerate()
        {
            let said = ask(&proxy, &origin.url("/"), Some(&format!("{user}:x")));
            assert_eq!(said[1], from, "{user}");
            // Nobody's login is the origin's business.
            assert_eq!(said[2], "-", "{user}");
            numbers[at].insert(said[0].clone());
        }
    }
    for one in &numbers {
        assert_eq!(one.len(), 1, "{numbers:?}");
    }
    assert_ne!(numbers[0], numbers[1]);
    assert_ne!(numbers[0], numbers[2]);
    assert_ne!(numbers[1], numbers[2]);
    drop(origin);
    proxy.finish();
}

#[test]
fn p32_each_parent_and_each_login_has_connections_of_its_own() {
    let parent = numbered();
    let address = parent.address;
    let proxy = start(
        &parent,
        &format!(
            "[[parent]]\nname = \"one\"\nurl = \"http://one:x@{address}\"\n\
             [[parent]]\nname = \"two\"\nurl = \"http://two:x@{address}\"\n\
             [[parent]]\nname = \"none\"\nurl = \"http://{address}\"\n\
             [[rule]]\nnames = \".one.test\"\nvia = \"one\"\n\
             [[rule]]\nnames = \".two.test\"\nvia = \"two\"\n\
             [[rule]]\nnames = \".none.test\"\nvia = \"none\"\n"
        ),
    );
    let mut seen: Vec<(String, String)> = Vec::new();
    for round in 0..3 {
        for (name, login) in [
            ("one", basic("one:x")),
            ("two", basic("two:x")),
            ("none", "-".to_owned()),
        ] {
            // A parent takes requests for any target.
            let said = ask(&proxy, &format!("http://r{round}.{name}.test/"), None);
            assert_eq!(said[2..].join(" "), login, "{name}");
            seen.push((name.to_owned(), said[0].clone()));
        }
        // As the target itself, the same address is yet another matter.
        let said = ask(&proxy, &parent.url("/"), None);
        assert_eq!(said[2], "-");
        seen.push(("direct".to_owned(), said[0].clone()));
    }
    let connections: HashSet<&String> = seen.iter().map(|(_, number)| number).collect();
    let pairs: HashSet<_> = seen.iter().collect();
    assert_eq!((connections.len(), pairs.len()), (4, 4), "{seen:?}");
    drop(parent);
    proxy.finish();
}

#[test]
fn an_unused_connection_is_kept_for_its_time() {
    let (origin, accepted) = Origin::manual();
    let proxy = start(&origin, "limits.idle_time = \"500ms\"\n");
    let client = Conn::dial(proxy.address("http"));
    client.send(format!(
        "GET {} HTTP/1.1\r\nHost: x\r\n\r\n",
        origin.url("/")
    ));
    let far = Accepted::next(&accepted);
    far.until(b"\r\n\r\n");
    far.send(ok(b"ok"));
    assert_eq!(Answer::read(&client).status, 200);
    client.fin();
    client.rest();
    assert!(far.is_silent_for(Duration::from_millis(200)));
    // Nobody has to come for that.
    assert!(far.rest().0.is_empty());
    drop((client, far, origin));
    proxy.finish();
}

#[test]
fn so_many_unused_connections_are_kept() {
    for (limits, kept) in [
        ("limits.idle_connections = 0", 0),
        ("limits.idle_connections = 2", 2),
        ("limits.idle_per_origin = 3", 3),
        ("", 5),
    ] {
        let open = Arc::new(Mutex::new(0));
        let origin = Origin::start({
            let open = Arc::clone(&open);
            move |mut socket| {
                *open.lock().expect("no other thread failed") += 1;
                let mut stream = BufReader::new(socket);
                while Request::read(&mut stream).is_some() {
                    socket.write_all(&ok(b"ok")).expect("sent");
                }
                *open.lock().expect("no other thread failed") -= 1;
            }
        });
        let proxy = start(&origin, limits);
        let clients: Vec<Conn> = (0..5)
            .map(|_| {
                let conn = Conn::dial(proxy.address("http"));
                conn.send(format!(
                    "GET {} HTTP/1.1\r\nHost: x\r\n\r\n",
                    origin.url("/")
                ));
                assert_eq!(Answer::read(&conn).status, 200);
                conn
            })
            .collect();
        for client in clients {
            client.fin();
            client.rest();
        }
        let count = || *open.lock().expect("no other thread failed");
        support::wait_for(limits, || count() == kept);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(count(), kept, "{limits}");
        }
        drop(origin);
        proxy.finish();
    }
}
