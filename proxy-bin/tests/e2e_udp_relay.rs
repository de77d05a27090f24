//! `udp` listeners: port relays for datagrams.

mod support;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{A, Certs, DEADLINE, Echo, LogLine, NameServer, Proxyd, Random, Reply, wait_for};

/// Log lines as JSON, and flows that end soon.
const ARGS: [&str; 4] = ["--access-log", "stdout", "--access-log-format", "json"];

/// A relay from `listen` to `target`; its flows may rest for a second.
fn relay(listen: &str, target: impl ToString, extra: &[&str]) -> Proxyd {
    let url = format!("udp://{listen}/{}?idle=1s", target.to_string());
    Proxyd::start(&[&["--listen", &url][..], &ARGS, extra].concat())
}

/// The path of a configuration file.
fn file(toml: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = Certs::shared().folder().join(format!("relay{number}.toml"));
    std::fs::write(&file, toml).expect("written");
    file.to_str().expect("a plain path").to_owned()
}

fn with_file(toml: &str) -> Proxyd {
    Proxyd::start(&[&["--config", &file(toml)][..], &ARGS].concat())
}

/// A client on `ip` that hears only what comes from `relay`.
fn client(ip: &str, relay: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).expect("bound");
    socket.set_read_timeout(Some(DEADLINE)).expect("set");
    socket.connect(relay).expect("connected");
    socket
}

#[track_caller]
fn round(client: &UdpSocket, payload: &[u8]) {
    assert_eq!(client.send(payload).expect("sent"), payload.len());
    let mut buf = vec![0; 65_536];
    let len = client.recv(&mut buf).expect("an answer");
    assert_eq!(len, payload.len());
    assert!(buf[..len] == *payload, "another answer");
}

/// Whether there is an answer before the next look.
fn is_answered(client: &UdpSocket, payload: &[u8]) -> bool {
    client.send(payload).expect("sent");
    let soon = Some(Duration::from_millis(20));
    client.set_read_timeout(soon).expect("set");
    let answered = client.recv(&mut [0; 1024]).is_ok();
    client.set_read_timeout(Some(DEADLINE)).expect("set");
    answered
}

#[track_caller]
fn hears_nothing(client: &UdpSocket) {
    client.set_nonblocking(true).expect("set");
    let silent = client.recv(&mut [0; 9]).map_err(|error| error.kind());
    assert_eq!(silent, Err(io::ErrorKind::WouldBlock));
    client.set_nonblocking(false).expect("set");
}

/// A port that nobody has for datagrams, at any address.
fn free_port() -> u16 {
    let any = UdpSocket::bind("[::]:0").and_then(|socket| socket.local_addr());
    any.expect("bound").port()
}

#[test]
fn datagrams_of_every_length_pass_both_ways() {
    let (v4, v6) = (Echo::new(), Echo::on("::1", 0));
    let names = NameServer::start();
    names.says("echo.test", A, Reply::Has(vec![[127, 0, 0, 1].into()], 60));
    let resolver = file(&format!("[resolver]\nservers = \"{}\"\n", names.address));
    let named = format!("echo.test:{}", v4.port());
    for (listen, target, echo) in [
        ("127.0.0.1:0", v4.address.to_string(), &v4),
        ("[::1]:0", v6.address.to_string(), &v6),
        ("127.0.0.1:0", v6.address.to_string(), &v6),
        ("[::1]:0", named, &v4),
    ] {
        let seen = echo.count();
        let proxy = relay(listen, &target, &["--config", &resolver]);
        let relay = proxy.address("udp");
        let client = client(&relay.ip().to_string(), relay);
        let mut random = Random::new(7);
        let mut bytes = 0;
        for length in [0, 1, 2, 512, 1_452, 1_453, 9_000, 60_000, 65_507, 0, 100] {
            round(&client, &random.bytes(length));
            bytes += length as u64;
        }
        assert_eq!(echo.count() - seen, 11);
        let own = client.local_addr().expect("bound").to_string();
        let stopped = proxy.finish();
        let lines = LogLine::all(&stopped.stdout);
        assert_eq!(lines.len(), 1, "{stopped}");
        let line = &lines[0];
        assert_eq!(line.text("client"), own);
        assert_eq!(line.text("service"), format!("udp-{}", relay.port()));
        assert_eq!(line.text("method"), "ASSOCIATE");
        assert_eq!(line.text("target"), target);
        assert_eq!(line.text("upstream"), echo.address.to_string());
        assert_eq!(line.text("status"), "");
        assert_eq!(line.number("up"), Some(bytes));
        assert_eq!(line.number("down"), Some(bytes));
        assert_eq!(line.text("end"), "idle");
        assert_eq!(line.text("error"), "");
    }
}

#[test]
fn each_client_gets_its_own_answers_only_and_keeps_its_worker() {
    let echo = Echo::new();
    let proxy = relay("127.0.0.1:0", echo.address, &["--workers", "3"]);
    let to = proxy.address("udp");
    thread::scope(|scope| {
        for number in 0..24_u8 {
            scope.spawn(move || {
                let client = client("127.0.0.1", to);
                for turn in 0..50_u8 {
                    round(&client, &[number, turn, number ^ turn]);
                }
                hears_nothing(&client);
            });
        }
    });
    assert_eq!(echo.count(), 24 * 50);
    // A flow each: nobody was handed to another worker.
    let mut ports: Vec<SocketAddr> = echo.seen.lock().expect("no panic").clone();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 24);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), 24);
    assert!(lines.iter().all(|line| line.number("up") == Some(150)));
}

#[test]
fn answers_come_from_the_address_that_was_sent_to() {
    let echo = Echo::new();
    for (listen, addresses) in [
        ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2"][..]),
        ("[::]:0", &["127.0.0.1", "127.0.0.2", "::1"]),
    ] {
        let proxy = relay(listen, echo.address, &["--workers", "2"]);
        let port = proxy.address("udp").port();
        for ip in addresses {
            let ip: IpAddr = ip.parse().expect("an address");
            // Connected, it hears nobody else.
            let any = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
            let client = client(any, (ip, port).into());
            for _ in 0..3 {
                round(&client, b"from where");
            }
        }
        // One socket may use them all.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        for turn in 0..6 {
            let to = SocketAddr::from(([127, 0, 0, 1 + turn % 2], port));
            socket.send_to(&[turn], to).expect("sent");
            let mut buf = [0; 9];
            let (len, from) = socket.recv_from(&mut buf).expect("an answer");
            assert_eq!((&buf[..len], from), (&[turn][..], to));
        }
        let lines = LogLine::all(&proxy.finish().stdout);
        assert_eq!(lines.len(), addresses.len() + 2, "{lines:?}");
    }
}

#[test]
fn p67_strangers_get_nothing_through() {
    let echo = Echo::new();
    let proxy = relay("127.0.0.1:0", echo.address, &[]);
    let client = client("127.0.0.1", proxy.address("udp"));
    round(&client, b"hello");
    let upstream = SocketAddr::new([127, 0, 0, 1].into(), echo.first().port());
    for ip in ["127.0.0.1", "127.0.0.2"] {
        let stranger = UdpSocket::bind((ip, 0)).expect("bound");
        stranger.send_to(b"evil", upstream).expect("sent");
    }
    round(&client, b"still only his");
    hears_nothing(&client);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines[0].number("down"), Some(19));
}

#[test]
fn p69_a_target_that_is_not_there_yet_ends_no_flow() {
    let port = free_port();
    let target = format!("127.0.0.1:{port}");
    let proxy = relay("127.0.0.1:0", &target, &[]);
    let client = client("127.0.0.1", proxy.address("udp"));
    for _ in 0..5 {
        // Each is answered by an ICMP error, which nobody is told of.
        assert!(!is_answered(&client, b"lost"));
    }
    let echo = Echo::on("127.0.0.1", port);
    wait_for("an answer", || is_answered(&client, b"found"));
    client.send(b"and again").expect("sent");
    // Behind answers that came late.
    let mut buf = [0; 9];
    while buf != *b"and again" {
        client.recv(&mut buf).expect("an answer");
    }
    assert!(echo.count() >= 2);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0].text("end"), "idle");
}

#[test]
fn p68_a_flow_that_rests_ends_and_one_that_does_not_lives() {
    let echo = Echo::new();
    let proxy = with_file(&format!(
        "workers = 2\n[udp]\nidle = \"1s\"\n\
         [[listener]]\nprotocol = \"udp\"\naddress = \"127.0.0.1:0\"\ntarget = \"{0}\"\n\
         [[listener]]\nprotocol = \"udp\"\naddress = \"127.0.0.2:0\"\ntarget = \"{0}\"\n\
         name = \"patient\"\nidle = \"5m\"\n",
        echo.address
    ));
    let first = proxy.address("udp");
    let second = proxy.line(|line| line.contains("listening udp 127.0.0.2:"));
    let second = second.rsplit(' ').next().and_then(|word| word.parse().ok());
    let second: SocketAddr = second.expect("an address");
    let (lively, resting) = (client("127.0.0.1", first), client("127.0.0.1", first));
    let patient = client("127.0.0.1", second);
    for client in [&lively, &resting, &patient] {
        round(client, b"hello");
    }
    let start = Instant::now();
    let sockets = proxy.base().sockets;
    assert_eq!(proxy.process().descriptors().sockets, sockets + 3);
    wait_for("the end of one flow", || {
        round(&lively, b"still there");
        proxy.process().descriptors().sockets == sockets + 2
    });
    assert!(start.elapsed() >= Duration::from_millis(900));
    for client in [&lively, &resting, &patient] {
        round(client, b"again");
    }
    let mut ports: Vec<SocketAddr> = echo.seen.lock().expect("no panic").clone();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4, "the one that rested has a new flow");
    let lines = LogLine::all(&proxy.stop().stdout);
    assert_eq!(lines.len(), 4, "{lines:?}");
    let patient = lines.iter().find(|line| line.text("service") == "patient");
    assert_eq!(patient.expect("a line").text("end"), "stopped");
}

#[test]
fn p68_the_flow_that_was_idle_for_longest_makes_room() {
    let echo = Echo::new();
    let proxy = with_file(&format!(
        "workers = 2\n[udp]\nper_client = 2\n\
         [[listener]]\nprotocol = \"udp\"\naddress = \"127.0.0.1:0\"\ntarget = \"{}\"\n",
        echo.address
    ));
    let to = proxy.address("udp");
    let [first, second, third] = [(); 3].map(|()| client("127.0.0.1", to));
    round(&first, b"first");
    round(&second, b"second");
    let upstream = echo.seen.lock().expect("no panic")[1];
    // Both are busy for a second, and then the one that still is stays.
    assert!(!is_answered(&third, b"no room"));
    wait_for("room", || {
        round(&second, b"second");
        is_answered(&third, b"third")
    });
    round(&second, b"second");
    let theirs = echo.seen.lock().expect("no panic");
    assert_eq!(theirs.last(), Some(&upstream), "the flow of before");
    drop(theirs);
    // Another client has flows of its own.
    round(&client("127.0.0.2", to), b"another");
    let stopped = proxy.stop();
    assert!(stopped.says("a limit of [udp] on associations is reached"));
    let lines = LogLine::all(&stopped.stdout);
    let limited = lines.iter().filter(|line| line.text("end") == "limit");
    let limited: Vec<String> = limited.map(|line| line.text("client")).collect();
    assert_eq!(limited, [first.local_addr().expect("bound").to_string()]);
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn p68_made_up_clients_fill_neither_the_log_nor_the_processor() {
    let echo = Echo::new();
    let listener = format!(
        "[[listener]]\nprotocol = \"udp\"\ntarget = \"{}\"\nidle = \"30s\"\n",
        echo.address
    );
    let proxy = with_file(&format!(
        "workers = 2\n[udp]\nassociations = 8\n{listener}address = \"127.0.0.1:0\"\n\
         {listener}address = \"127.0.0.2:0\"\nclients = \"127.0.0.1/32\"\n"
    ));
    let open = proxy.address("udp");
    let closed = proxy.line(|line| line.contains("listening udp 127.0.0.2:"));
    let closed = closed.rsplit(' ').next().and_then(|word| word.parse().ok());
    let closed: SocketAddr = closed.expect("an address");
    let invited = client("127.0.0.1", closed);
    round(&invited, b"hello");
    let upstream = echo.first();

    // Those who are not let in take no room, also from one who rests.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        flood(closed);
    }
    round(&invited, b"still there");
    let seen = echo.seen.lock().expect("no panic").clone();
    assert_eq!(seen, [upstream; 2]);

    let (start, cpu) = (Instant::now(), proxy.process().cpu());
    let mut count = 0;
    while start.elapsed() < Duration::from_millis(2_500) {
        count += flood(open);
    }
    let seconds = usize::try_from(start.elapsed().as_secs()).expect("a few") + 2;
    let cpu = proxy.process().cpu() - cpu;
    let stopped = proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    let lines = LogLine::all(&stopped.stdout);
    assert!(count > 1_000, "it is a flood: {count}");
    assert!(lines.len() <= 8 * seconds, "{} lines", lines.len());
    assert!(stopped.stderr.len() <= 20 + 3 * seconds, "{stopped}");
    assert!(stopped.says("clients may not come from there"), "{stopped}");
    let each = cpu / u32::try_from(count).expect("fits");
    assert!(each < Duration::from_millis(1), "{each:?} for each");
}

/// Datagrams of many clients; answers how many.
fn flood(to: SocketAddr) -> usize {
    for number in 0..100_u8 {
        let from = UdpSocket::bind(SocketAddr::from(([127, 7, 7, number], 0))).expect("bound");
        from.send_to(b"flood", to).expect("sent");
    }
    100
}

#[test]
fn p70_a_target_that_is_forbidden_is_told_of_once() {
    let echo = Echo::new();
    let names = NameServer::start();
    names.says("inner.test", A, Reply::Has(vec![[127, 0, 0, 1].into()], 60));
    let port = echo.port();
    for (rule, target) in [
        ("networks = \"127.0.0.0/8\"", format!("127.0.0.1:{port}")),
        ("networks = \"127.0.0.0/8\"", format!("inner.test:{port}")),
        ("names = \"inner.test\"", format!("inner.test:{port}")),
        ("from = \"127.0.0.1\"", format!("127.0.0.1:{port}")),
        ("operations = \"associate\"", format!("127.0.0.1:{port}")),
    ] {
        let proxy = with_file(&format!(
            "workers = 2\n[resolver]\nservers = \"{}\"\n\
             [[listener]]\nprotocol = \"udp\"\naddress = \"127.0.0.1:0\"\n\
             target = \"{target}\"\n[[rule]]\naction = \"deny\"\n{rule}\n",
            names.address
        ));
        let client = client("127.0.0.1", proxy.address("udp"));
        for _ in 0..20 {
            client.send(b"let me in").expect("sent");
        }
        proxy.line(|line| line.contains("datagrams are dropped"));
        client.send(b"again").expect("sent");
        let stopped = proxy.stop();
        assert!(stopped.took < Duration::from_secs(5), "{:?}", stopped.took);
        hears_nothing(&client);
        let lines = LogLine::all(&stopped.stdout);
        assert_eq!(lines.len(), 1, "{rule}: {stopped}");
        assert_eq!(lines[0].text("end"), "forbidden", "{rule}");
        assert_eq!(lines[0].text("target"), target);
        assert!(lines[0].text("error").starts_with("rule:"), "{stopped}");
        let told = stopped.stderr.iter();
        let told = told.filter(|line| line.contains("datagrams are dropped"));
        assert_eq!(told.count(), 1, "{stopped}");
    }
    assert_eq!(echo.count(), 0);
}

#[test]
fn p30_a_relay_that_leads_back_is_a_loop() {
    let (one, other) = (free_port(), free_port());
    for listeners in [
        // By an alias of its own address.
        vec![format!("udp://0.0.0.0:{one}/127.0.0.1:{one}")],
        vec![format!("udp://[::]:{one}/127.0.0.2:{one}")],
        vec![format!("udp://127.0.0.1:{one}/localhost:{one}")],
        // By a detour.
        vec![
            format!("udp://127.0.0.1:{one}/127.0.0.1:{other}"),
            format!("udp://127.0.0.1:{other}/127.0.0.1:{one}"),
        ],
    ] {
        let mut args = ARGS.to_vec();
        for listener in &listeners {
            args.extend(["--listen", listener]);
        }
        let proxy = Proxyd::start(&args);
        let client = client("127.0.0.1", ([127, 0, 0, 1], one).into());
        client.send(b"round and round").expect("sent");
        proxy.line(|line| line.contains("\"forbidden\""));
        let stopped = proxy.stop();
        hears_nothing(&client);
        let lines = LogLine::all(&stopped.stdout);
        assert_eq!(lines.len(), 1, "{stopped}");
        assert_eq!(lines[0].text("error"), "loop", "{stopped}");
    }
}

#[test]
fn a_port_in_use_is_named_and_that_of_tcp_is_another() {
    // Where no client of another test has a port.
    let taken = UdpSocket::bind("127.8.8.8:0").expect("bound");
    let address = taken.local_addr().expect("bound");
    let url = format!("udp://{address}/127.0.0.1:9");
    for workers in ["1", "3"] {
        let output = Command::new(env!("CARGO_BIN_EXE_proxyd"))
            .args(["--listen", &url, "--workers", workers])
            .output();
        let output = output.expect("started");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{said}");
        let start =
            format!("proxyd: listener udp://{address}: cannot listen: Address already in use");
        assert!(said.starts_with(&start), "{said}");
        let advice = format!("(shown by `ss -lunp sport = :{}`)", address.port());
        assert!(said.contains(&advice), "{said}");
    }
    drop(taken);
    let echo = Echo::new();
    let also = format!("tcp://{address}/127.0.0.1:9");
    let proxy = relay(&address.to_string(), echo.address, &["--listen", &also]);
    round(&client("127.0.0.1", address), b"beside TCP");
    assert_eq!(proxy.address("tcp"), address);
    proxy.finish();
}

#[test]
fn p81_flows_end_when_they_fall_silent() {
    let echo = Echo::new();
    let url = format!("udp://127.0.0.1:0/{}", echo.address);
    let args = [&["--listen", &url, "--workers", "2"][..], &ARGS].concat();
    // Without a flow nothing is waited for: a busy machine is not busy each time.
    let took = (0..3).map(|_| Proxyd::start(&args).stop().took).min();
    assert!(took < Some(Duration::from_millis(500)), "{took:?}");

    let proxy = Proxyd::start(&args);
    let to = proxy.address("udp");
    let clients: Vec<UdpSocket> = (0..8).map(|_| client("127.0.0.1", to)).collect();
    for client in &clients {
        round(client, b"hello");
    }
    proxy.process().signal(Signal::TERM);
    // Who still talks is served, by the worker of before.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        round(&clients[0], b"one more");
    }
    let upstream = echo.first();
    let theirs = echo.seen.lock().expect("no panic").clone();
    assert!(theirs[8..].iter().all(|from| *from == upstream));
    // Nobody else is.
    assert!(!is_answered(&client("127.0.0.1", to), b"too late"));
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
    assert!(stopped.took < Duration::from_secs(10), "{:?}", stopped.took);
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), 8, "{stopped}");
    assert!(lines.iter().all(|line| line.text("end") == "stopped"));
}

#[test]
fn p81_the_deadline_of_the_drain_cuts_flows() {
    let echo = Echo::new();
    let proxy = relay("127.0.0.1:0", echo.address, &["--drain", "1500ms"]);
    let client = client("127.0.0.1", proxy.address("udp"));
    round(&client, b"hello");
    proxy.process().signal(Signal::TERM);
    let stopped = thread::scope(|scope| {
        let waiting = scope.spawn(|| proxy.wait());
        while !waiting.is_finished() {
            is_answered(&client, b"one more");
        }
        waiting.join().expect("stopped")
    });
    assert!(stopped.status.success(), "{stopped}");
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), 1, "{stopped}");
    assert_eq!(lines[0].text("end"), "drained");
    assert!(lines[0].number("up") > Some(13));
}
