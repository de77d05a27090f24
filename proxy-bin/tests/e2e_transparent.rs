//! Transparent mode, in network namespaces of its own: connections to others
//! are sent to proxyd by the firewall of a router and go where they were bound
//! for.

mod support;

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::thread;

use support::{
    Accepted, At, Certs, Conn, DOWN, Ended, LogLine, Net, Origin, Proxyd, UP, enter, wait_for,
};

/// How the router sends connections to proxyd.
#[derive(Clone, Copy, Debug)]
enum Firewall {
    NftRedirect,
    NftDnat,
    NftTproxy,
    TablesRedirect,
    TablesTproxy,
}

impl Firewall {
    fn listen(self) -> &'static str {
        match self {
            Self::NftTproxy | Self::TablesTproxy => "tproxy",
            _ => "redirect",
        }
    }

    /// Sends what clients send to these two ports to proxyd at `port`, with the
    /// lines of docs/config.md.
    fn set_up(self, net: &Net, port: u16, ports: [u16; 2]) {
        let lines = |part: &str| {
            let [first, second] = ports;
            documented(part)
                .replace("lan0", "client")
                .replace("3129", &port.to_string())
                .replace("3130", &port.to_string())
                .replace("{ 80, 443 }", &format!("{{ {first}, {second} }}"))
                .replace("80,443", &format!("{first},{second}"))
        };
        match self {
            Self::NftRedirect => net.nft(&lines("redirect to :3129")),
            Self::NftDnat => {
                let rule = lines("redirect to :3129");
                let (start, _) = rule.split_once("iifname").expect("a rule");
                let from = format!("iifname client tcp dport {{ {}, {} }}", ports[0], ports[1]);
                net.nft(&format!(
                    "{start}{from} dnat ip to 10.1.0.1:{port}\n{from} dnat ip6 to [fd01::1]:{port}\n}}\n}}\n"
                ));
            }
            Self::NftTproxy => net.nft(&lines("tproxy ip to :3130")),
            Self::TablesRedirect => lines("-j REDIRECT").lines().for_each(|line| net.run(line)),
            Self::TablesTproxy => lines("-j TPROXY").lines().for_each(|line| net.run(line)),
        }
        if self.listen() == "tproxy" {
            lines("ip rule add").lines().for_each(|line| net.run(line));
        }
    }
}

/// The first code of docs/config.md that has `part` in it.
fn documented(part: &str) -> &'static str {
    let blocks = include_str!("../../docs/config.md").split("```\n");
    let mut code = blocks.skip(1).filter(|block| block.contains(part));
    code.find(|block| block.starts_with(['t', 'i']))
        .expect("documented")
}

/// A server at the other side of the router.
struct Server {
    origin: Origin,
    accepted: Receiver<Accepted>,
}

impl Server {
    fn new(net: &Net, ip: &str) -> Self {
        let (origin, accepted) = net.at(At::Server, || Origin::manual_at(ip));
        Self { origin, accepted }
    }

    fn address(&self) -> SocketAddr {
        self.origin.address
    }
}

/// proxyd with a log and these listeners.
fn start(listen: &[&str]) -> Proxyd {
    let file = Certs::shared().folder().join("transparent.toml");
    let text = "workers = 2\nlog = { access = \"stdout\", format = \"json\" }\n";
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("a plain path");
    let listeners = listen.iter().flat_map(|url| ["--listen", url]);
    let args: Vec<&str> = ["--config", file].into_iter().chain(listeners).collect();
    Proxyd::start(&args)
}

/// A client behind the router that connects there.
fn dial(net: &Net, address: SocketAddr) -> Conn {
    net.at(At::Client, || Conn::dial(address))
}

/// The lines of the log about `target`.
fn lines(log: &[LogLine], target: SocketAddr) -> Vec<&LogLine> {
    let target = target.to_string();
    let about = |line: &&LogLine| line.text("target") == target;
    log.iter().filter(about).collect()
}

const V4: &str = "45.66.77.2";
const V6: &str = "2a0a:1:2:3::2";

/// Clients reach the servers they meant, of both families, and see no proxy.
fn reaches_the_original_destination(net: &Net, firewall: Firewall, listen: &str, ips: &[&str]) {
    let kind = firewall.listen();
    let proxy = start(&[&format!("{kind}://{listen}")]);
    let servers: Vec<Server> = ips.iter().map(|ip| Server::new(net, ip)).collect();
    let ports = servers.iter().map(|server| server.address().port());
    let ports: Vec<u16> = ports.chain([80]).take(2).collect();
    firewall.set_up(net, proxy.address(kind).port(), [ports[0], ports[1]]);
    for server in &servers {
        let client = dial(net, server.address());
        assert_eq!(client.peer(), server.address());
        client.send("question");
        let far = Accepted::next(&server.accepted);
        assert_ne!(far.peer(), client.local(), "past the proxy");
        far.expect("question");
        far.send("answer");
        client.expect("answer");
        exchange(&client, &far);
        // The end of one direction leaves the other open.
        client.fin();
        assert_eq!(far.rest(), (Vec::new(), Ended::Finished));
        far.send("last words");
        far.fin();
        assert_eq!(client.rest(), (b"last words".to_vec(), Ended::Finished));
    }
    let targets: Vec<SocketAddr> = servers.iter().map(Server::address).collect();
    drop(servers);
    let stopped = proxy.finish();
    let log = LogLine::all(&stopped.stdout);
    for target in targets {
        let [line] = lines(&log, target)[..] else {
            panic!("not one line about {target}: {stopped}");
        };
        assert_eq!(line.text("end"), "client-finished", "{line:?}");
        assert_eq!(line.text("method"), "CONNECT", "{line:?}");
        assert_eq!(line.text("upstream"), target.to_string(), "{line:?}");
        let counts = (line.number("up"), line.number("down"));
        assert_eq!(counts, (Some(8 + BULK), Some(6 + BULK + 10)), "{line:?}");
    }
}

/// Much in both directions at once.
fn exchange(client: &Conn, far: &Conn) {
    thread::scope(|scope| {
        scope.spawn(|| UP.send(client, 0, BULK).expect("sent"));
        scope.spawn(|| DOWN.send(far, 0, BULK).expect("sent"));
        scope.spawn(|| UP.check(far, 0, BULK).expect("right"));
        DOWN.check(client, 0, BULK).expect("right");
    });
}

const BULK: u64 = 3 << 20;

#[test]
fn p72_redirected_of_both_families_on_one_socket() {
    if let Some(net) = enter("p72_redirected_of_both_families_on_one_socket") {
        reaches_the_original_destination(&net, Firewall::NftRedirect, "[::]:0", &[V4, V6]);
    }
}

#[test]
fn p72_redirected_ipv4() {
    if let Some(net) = enter("p72_redirected_ipv4") {
        reaches_the_original_destination(&net, Firewall::NftRedirect, "0.0.0.0:0", &[V4]);
    }
}

#[test]
fn p72_redirected_to_an_address() {
    if let Some(net) = enter("p72_redirected_to_an_address") {
        reaches_the_original_destination(&net, Firewall::NftDnat, "[::]:0", &[V4, V6]);
    }
}

#[test]
fn p72_redirected_by_iptables() {
    if let Some(net) = enter("p72_redirected_by_iptables") {
        reaches_the_original_destination(&net, Firewall::TablesRedirect, "[::]:0", &[V4, V6]);
    }
}

#[test]
fn p72_tproxy_of_both_families_on_one_socket() {
    if let Some(net) = enter("p72_tproxy_of_both_families_on_one_socket") {
        reaches_the_original_destination(&net, Firewall::NftTproxy, "[::]:0", &[V4, V6]);
    }
}

#[test]
fn p72_tproxy_ipv4() {
    if let Some(net) = enter("p72_tproxy_ipv4") {
        reaches_the_original_destination(&net, Firewall::NftTproxy, "0.0.0.0:0", &[V4]);
    }
}

#[test]
fn p72_tproxy_by_iptables() {
    if let Some(net) = enter("p72_tproxy_by_iptables") {
        reaches_the_original_destination(&net, Firewall::TablesTproxy, "[::]:0", &[V4, V6]);
    }
}

/// A client is closed without a byte, and the log tells why.
fn is_refused(net: &Net, proxy: &Proxyd, target: SocketAddr, error: &str) {
    let client = dial(net, target);
    // What it says first is not read: it may be answered with a reset.
    client.send_anyway("hello");
    assert_eq!(client.rest().0, b"");
    let (target, error) = (format!("\"{target}\""), format!("\"{error}\""));
    proxy.line(|line| {
        [&target, &error, "\"end\":\"forbidden\""]
            .iter()
            .all(|part| line.contains(*part))
    });
}

/// Who comes straight to proxyd, past the firewall, or to another of its
/// listeners, is refused.
fn straight_is_a_loop(net: &Net, firewall: Firewall) {
    let kind = firewall.listen();
    let proxy = start(&[&format!("{kind}://[::]:0"), "http://[::]:0?open=on"]);
    let port = proxy.address(kind).port();
    let straight = ["10.1.0.1", "fd01::1", "45.66.77.1", "2a0a:1:2:3::1"]
        .map(|ip| SocketAddr::new(ip.parse().expect("an address"), port));
    for target in straight {
        is_refused(net, &proxy, target, "loop");
    }
    // Now that the kernel keeps track of connections.
    let other = proxy.address("http").port();
    firewall.set_up(net, port, [other, port]);
    for target in straight {
        is_refused(net, &proxy, target, "loop");
    }
    let other = SocketAddr::new(straight[2].ip(), other);
    is_refused(net, &proxy, other, "loop");
    proxy.line(|line| line.contains("WARN") && line.contains("not sent here by the firewall"));
    let stopped = proxy.finish();
    let log = LogLine::all(&stopped.stdout);
    for target in straight {
        assert_eq!(lines(&log, target).len(), 2, "{stopped}");
    }
    assert_eq!(log.len(), 2 * straight.len() + 1, "{stopped}");
}

#[test]
fn p72_straight_to_redirect_is_a_loop() {
    if let Some(net) = enter("p72_straight_to_redirect_is_a_loop") {
        straight_is_a_loop(&net, Firewall::NftRedirect);
    }
}

#[test]
fn p72_straight_to_tproxy_is_a_loop() {
    if let Some(net) = enter("p72_straight_to_tproxy_is_a_loop") {
        straight_is_a_loop(&net, Firewall::NftTproxy);
    }
}

/// The user that proxyd runs as is not sent to it, or all would end in a circle.
#[test]
fn p72_the_documented_exception_for_proxyd_itself() {
    let Some(net) = enter("p72_the_documented_exception_for_proxyd_itself") else {
        return;
    };
    let server = Server::new(&net, V4);
    let port = server.address().port();
    let lines = documented("skuid").replace("\"proxyd\"", "root");
    net.nft(&lines.replace("{ 80, 443 }", &port.to_string()));
    let client = Conn::dial(server.address());
    assert_eq!(Accepted::next(&server.accepted).peer(), client.local());
}

/// What is not public is kept from clients that the firewall sends, too.
#[test]
fn p39_the_guard_holds_for_redirected_clients() {
    let Some(net) = enter("p39_the_guard_holds_for_redirected_clients") else {
        return;
    };
    let proxy = start(&["redirect://[::]:0"]);
    let port = proxy.address("redirect").port();
    Firewall::NftRedirect.set_up(&net, port, [80, 5000]);
    for target in ["192.168.9.9:5000", "[fd02::9]:5000"] {
        let target = target.parse().expect("an address");
        is_refused(&net, &proxy, target, "guard:private");
    }
    proxy.finish();
}

/// A client that goes away while its target does not answer leaves nothing.
#[test]
fn p33_a_redirected_client_that_leaves() {
    let Some(net) = enter("p33_a_redirected_client_that_leaves") else {
        return;
    };
    let proxy = start(&["redirect://[::]:0"]);
    Firewall::NftRedirect.set_up(&net, proxy.address("redirect").port(), [80, 443]);
    // Nobody has this address, and the router is told nothing of it.
    net.run("ip neighbour add 45.66.77.9 lladdr 02:00:00:00:00:09 dev server nud permanent");
    let client: TcpStream = net.at(At::Client, || {
        TcpStream::connect("45.66.77.9:80").expect("taken by the proxy")
    });
    let base = proxy.base().sockets;
    wait_for("the dial", || {
        proxy.process().descriptors().sockets >= base + 2
    });
    Conn::over(client).reset();
    proxy.line(|line| line.contains("45.66.77.9:80") && line.contains("client-reset"));
    proxy.finish();
}

/// Without the right to it the start fails, and says what to do.
#[test]
fn tproxy_needs_a_right() {
    let proxyd = env!("CARGO_BIN_EXE_proxyd");
    let mut command = Command::new("setpriv");
    match rustix::process::geteuid().is_root() {
        true => command.args(["--bounding-set", "-net_admin,-net_raw", proxyd]),
        // Others do not have it.
        false => command.arg(proxyd),
    };
    let output = command
        .args(["--listen", "tproxy://127.0.0.1:0"])
        .output()
        .expect("util-linux is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "tproxy://127.0.0.1:0",
        "cannot listen",
        "grant CAP_NET_ADMIN",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
