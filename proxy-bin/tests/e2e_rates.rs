//! Rates: nobody is served faster than a connection, a user or a listener may be,
//! in any mode and either direction, and nobody is left out.

mod support;

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::thread::scope;
use std::time::{Duration, Instant};

use support::{
    Accepted, Answer, Conn, DOWN, Echo, LogLine, Mode, Origin, Proxyd, Random, UP, Udp, basic,
    check_chunks, wait_for,
};

/// The rate of these tests.
const RATE: u64 = 400_000;
/// Half a second of it may come at once.
const SIZE: u64 = 1_000_000;
/// What exceeds the burst, at that rate.
const LEAST: Duration = Duration::from_secs(2);
/// A loaded machine.
const MOST: Duration = Duration::from_secs(15);

#[test]
fn each_connection_in_both_directions_in_every_mode() {
    let (origin, accepted) = Origin::manual();
    let toml = "[limits]\nsession_rate_up = \"400KB/s\"\nsession_rate_down = \"400KB/s\"\n";
    let proxy = Proxyd::with_config(origin.address, toml);
    scope(|threads| {
        for mode in Mode::ALL {
            let start = Instant::now();
            let near = mode.open(&proxy, origin.address);
            let far = Accepted::next(&accepted);
            threads.spawn(move || {
                scope(|ways| {
                    ways.spawn(|| UP.send(&near, 0, SIZE).expect("sent"));
                    ways.spawn(|| DOWN.send(&far, 0, SIZE).expect("sent"));
                    for (conn, pattern) in [(&far, UP), (&near, DOWN)] {
                        ways.spawn(move || {
                            pattern.check(conn, 0, SIZE).expect("all of it");
                            in_time(start, &format!("{mode:?}"));
                        });
                    }
                });
            });
        }
    });
    drop(origin);
    proxy.finish();
}

#[test]
fn datagrams_beyond_the_rate_are_dropped() {
    const LENGTH: u64 = 1_000;
    let echo = Echo::new();
    let (origin, _) = Origin::manual();
    let log = "log = { access = \"stdout\", format = \"json\" }";
    let toml = format!("{log}\nlimits.session_rate_up = \"40KB/s\"\n");
    let proxy = Proxyd::with_config(origin.address, &toml);
    let start = Instant::now();
    let udp = Udp::new(&proxy);
    for _ in 0..60 {
        udp.send("127.0.0.1", echo.port(), [7; LENGTH as usize]);
    }
    for _ in 0..20 {
        assert_eq!(udp.next().1.len(), LENGTH as usize);
    }
    udp.control.fin();
    drop(origin);
    let lines = LogLine::all(&proxy.finish().stdout);
    let most = 20_000 + 40_000 * start.elapsed().as_millis() as u64 / 1_000;
    let up = lines[0].number("up").expect("a number");
    assert!((20 * LENGTH..=most).contains(&up), "{up} of at most {most}");
}

#[test]
fn flows_of_one_port_relay_share_its_rate() {
    const LENGTH: u64 = 1_000;
    let echo = Echo::new();
    let listen = format!("udp://127.0.0.1:0/{}?rate_up=40KB/s", echo.address);
    let log = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::start(&[&["--listen", &listen][..], &log].concat());
    let start = Instant::now();
    let clients = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bound"));
    for number in 0..60 {
        let sent = clients[number % 3].send_to(&[7; LENGTH as usize], proxy.address("udp"));
        assert_eq!(sent.expect("sent"), LENGTH as usize);
    }
    wait_for("what passes at once", || echo.count() >= 20);
    let lines = LogLine::all(&proxy.stop().stdout);
    let most = 20_000 + 40_000 * start.elapsed().as_millis() as u64 / 1_000;
    let up: u64 = lines.iter().filter_map(|line| line.number("up")).sum();
    assert_eq!(lines.len(), 3);
    assert!((20 * LENGTH..=most).contains(&up), "{up} of at most {most}");
}

#[test]
fn bodies_of_http() {
    let (origin, accepted) = Origin::manual();
    let toml = "[limits]\nsession_rate_up = \"400KB/s\"\nsession_rate_down = \"400KB/s\"\n";
    let proxy = Proxyd::with_config(origin.address, toml);
    let to = origin.address;
    let tests: [fn(&Conn, &Conn, SocketAddr); 4] = [
        answer_with_a_length,
        answer_in_chunks,
        answer_up_to_the_end,
        request_with_a_length,
    ];
    scope(|threads| {
        for (number, test) in tests.into_iter().enumerate() {
            let near = Conn::dial(proxy.address("http"));
            let start = Instant::now();
            let method = match number {
                3 => format!("POST / HTTP/1.1\r\nContent-Length: {SIZE}"),
                _ => "GET / HTTP/1.1".to_owned(),
            };
            let head = method.replace(" / ", &format!(" http://{to}/ "));
            near.send(format!("{head}\r\nHost: {to}\r\n\r\n"));
            let far = Accepted::next(&accepted);
            threads.spawn(move || {
                far.until(b"\r\n\r\n");
                test(&near, &far, to);
                in_time(start, &format!("case {number}"));
            });
        }
    });
    drop(origin);
    proxy.finish();
}

fn answer_with_a_length(near: &Conn, far: &Conn, _: SocketAddr) {
    far.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
    beside(far, near, |near| DOWN.check(near, 0, SIZE));
}

fn answer_in_chunks(near: &Conn, far: &Conn, _: SocketAddr) {
    far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    scope(|ways| {
        ways.spawn(|| {
            let mut far = far;
            for at in 0..SIZE / 10_000 {
                write!(far, "{:x}\r\n", 10_000).expect("sent");
                DOWN.send(far, at * 10_000, (at + 1) * 10_000)
                    .expect("sent");
                far.send("\r\n");
            }
            far.send("0\r\n\r\n");
        });
        assert_eq!(Answer::read_head(near).status, 200);
        check_chunks(DOWN, &mut &*near, SIZE).expect("all of it");
    });
}

fn answer_up_to_the_end(near: &Conn, far: &Conn, _: SocketAddr) {
    far.send("HTTP/1.0 200 OK\r\n\r\n");
    beside(far, near, |near| DOWN.check(near, 0, SIZE));
    far.fin();
}

fn request_with_a_length(near: &Conn, far: &Conn, _: SocketAddr) {
    scope(|ways| {
        ways.spawn(|| UP.send(near, 0, SIZE).expect("sent"));
        UP.check(far, 0, SIZE).expect("all of it");
    });
    far.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(Answer::read_head(near).status, 200);
}

/// Sends a body while it is taken.
fn beside(far: &Conn, near: &Conn, take: impl FnOnce(&Conn) -> std::io::Result<()>) {
    scope(|ways| {
        ways.spawn(|| DOWN.send(far, 0, SIZE).expect("sent"));
        assert_eq!(Answer::read_head(near).status, 200);
        take(near).expect("all of it");
    });
}

#[test]
fn connections_of_one_user_share_a_rate_and_each_gets_some() {
    let (origin, accepted) = Origin::manual();
    let toml = "workers = 2\n\
         [[user]]\nname = \"alice\"\npassword = \"secret\"\nrate_down = \"400KB/s\"\n\
         [[user]]\nname = \"bob\"\npassword = \"secret\"\n";
    let proxy = Proxyd::with_config(origin.address, toml);
    let open = |login: &str| {
        let near = Conn::dial(proxy.address("http"));
        let (to, login) = (origin.address, basic(login));
        near.send(format!(
            "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {login}\r\n\r\n"
        ));
        assert_eq!(Answer::read_head(&near).status, 200);
        (near, Accepted::next(&accepted))
    };
    let start = Instant::now();
    let hers = [(); 4].map(|()| open("alice:secret"));
    let (near, far) = open("bob:secret");
    scope(|threads| {
        for (near, far) in &hers {
            threads.spawn(move || DOWN.send(far, 0, SIZE / 4).expect("sent"));
            threads.spawn(move || DOWN.check(near, 0, SIZE / 4).expect("all of it"));
        }
        // Nobody else is held up.
        threads.spawn(|| DOWN.send(&far, 0, 20 * SIZE).expect("sent"));
        DOWN.check(&near, 0, 20 * SIZE).expect("all of it");
    });
    in_time(start, "alice");
    drop((hers, near, far, origin));
    proxy.finish();
}

#[test]
fn answers_that_share_a_rate_come_evenly_and_none_is_given_up() {
    const LENGTH: u64 = 60_000;
    let (origin, accepted) = Origin::manual();
    let toml = "[[user]]\nname = \"alice\"\npassword = \"secret\"\nrate_down = \"40KB/s\"\n\
         [timeouts]\nfirst_byte = \"1s\"\nprogress = \"1s\"\n";
    let proxy = Proxyd::with_config(origin.address, toml);
    let (to, login) = (origin.address, basic("alice:secret"));
    let start = Instant::now();
    let asked = [(); 4].map(|()| {
        let near = Conn::dial(proxy.address("http"));
        near.send(format!(
            "GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {login}\r\n\r\n"
        ));
        let far = Accepted::next(&accepted);
        far.until(b"\r\n\r\n");
        far.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"
        ));
        DOWN.send(&far, 0, LENGTH).expect("sent");
        (near, far)
    });
    let took = scope(|threads| {
        let readers = asked.each_ref().map(|(near, _)| {
            threads.spawn(move || {
                assert_eq!(Answer::read_head(near).status, 200);
                DOWN.check(near, 0, LENGTH).expect("all of it");
                start.elapsed()
            })
        });
        readers.map(|reader| reader.join().expect("no panic"))
    });
    let [first, last] = [took.iter().min(), took.iter().max()].map(|time| *time.expect("four"));
    assert!(first > last.mul_f32(0.6), "{took:?}");
    drop((asked, origin));
    proxy.finish();
}

#[test]
fn clients_of_one_listener_share_a_rate() {
    let (origin, accepted) = Origin::manual();
    let target = origin.address;
    let listen = format!("tcp://127.0.0.1:0/{target}?rate_up=400KB/s");
    let proxy = Proxyd::start(&["--listen", &listen]);
    let start = Instant::now();
    let clients = [(); 4].map(|()| {
        let near = Conn::dial(proxy.address("tcp"));
        (near, Accepted::next(&accepted))
    });
    scope(|threads| {
        for (near, far) in &clients {
            threads.spawn(move || UP.send(near, 0, SIZE / 4).expect("sent"));
            threads.spawn(move || UP.check(far, 0, SIZE / 4).expect("all of it"));
            // The other way is free.
            threads.spawn(move || DOWN.send(far, 0, SIZE).expect("sent"));
            threads.spawn(move || DOWN.check(near, 0, SIZE).expect("all of it"));
        }
    });
    in_time(start, "the listener");
    drop((clients, origin));
    proxy.finish();
}

#[test]
fn a_limited_tunnel_ends_like_any_other() {
    let (origin, accepted) = Origin::manual();
    let toml = "[limits]\nsession_rate_down = \"20KB/s\"\ntimeouts.stalled = \"2s\"\n";
    let toml = toml.replace("timeouts.stalled", "[timeouts]\nstalled");
    let proxy = Proxyd::with_config(origin.address, &toml);
    let mut random = Random::new(3);
    let clients = [(); 3].map(|()| {
        let near = Mode::Connect.open(&proxy, origin.address);
        (near, Accepted::next(&accepted))
    });
    let body = random.bytes(90_000);
    for (_, far) in &clients {
        far.send(&body);
    }
    let [(first, far), (second, resetting), (third, still)] = clients;
    // In the middle of waiting: a client that leaves, an origin that resets.
    first.exact(20_000);
    first.reset();
    assert_eq!(far.rest().1, support::Ended::Reset);
    second.exact(20_000);
    resetting.reset();
    assert_eq!(second.rest().1, support::Ended::Reset);
    // Waiting for its turn is not standing still.
    still.fin();
    assert_eq!(third.to_end(), body);
    third.fin();
    assert_eq!(still.to_end(), b"");
    drop(origin);
    proxy.finish();
}

#[track_caller]
fn in_time(start: Instant, who: &str) {
    let took = start.elapsed();
    let rate = SIZE * 1000 / u64::try_from(took.as_millis()).expect("small").max(1);
    assert!(took >= LEAST, "{who}: {took:?}, {rate} of {RATE} B/s");
    assert!(took < MOST, "{who}: {took:?}, {rate} of {RATE} B/s");
}
