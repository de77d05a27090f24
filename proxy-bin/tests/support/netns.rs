//! Network namespaces: a router with a client on one side and a server on the other.
//!
//! Neither root nor any change to the machine is needed: where `unshare -n` is
//! not permitted, `unshare -Urn` makes a user namespace as well.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::wait_for;

/// The namespaces, seen from the one of the router, in which this process runs.
pub(crate) struct Net {
    client: Space,
    server: Space,
}

/// Whose namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Client,
    Server,
}

struct Space {
    handle: File,
    holder: Child,
}

/// Runs the test with this name once more, as the router in a new namespace;
/// there it answers with the network.
///
/// # Panics
/// If the machine cannot make namespaces, or the test failed in there.
pub(crate) fn enter(test: &str) -> Option<Net> {
    if std::env::var_os(INSIDE).is_some() {
        return Some(Net::new());
    }
    let kind = ["-n", "-Urn"].into_iter().find(|kind| {
        let probe = command("unshare").args([kind, "true"]).output();
        probe.expect("util-linux is installed").status.success()
    });
    let kind = kind.expect("a machine that lets this user make network namespaces (unshare -Urn)");
    let this = std::env::current_exe().expect("the path of this test");
    let mut inside = command("unshare");
    inside.args([kind, "--"]).arg(this);
    inside.args(["--exact", test, "--nocapture", "--test-threads", "1"]);
    let output = inside.env(INSIDE, "yes").output().expect("started");
    let said = told(&output);
    assert!(output.status.success(), "in the namespace:\n{said}");
    assert!(said.contains("1 passed"), "no test of this name:\n{said}");
    None
}

impl Net {
    fn new() -> Self {
        run("ip", &["link", "set", "lo", "up"]);
        let (client, server) = (Space::new(), Space::new());
        client.join("client", CLIENT);
        server.join("server", SERVER);
        Self { client, server }
    }

    /// Runs `work` at that place: its sockets stay there for good.
    pub(crate) fn at<T: Send>(&self, place: Place, work: impl FnOnce() -> T + Send) -> T {
        let space = match place {
            Place::Client => &self.client,
            Place::Server => &self.server,
        };
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(space.handle.as_fd(), network).expect("permitted");
                work()
            });
            inside.join().expect("no panic")
        })
    }

    /// Feeds `rules` to `nft -f`.
    pub(crate) fn nft(&self, rules: &str) {
        let mut child = command("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nftables is installed");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(rules.as_bytes()).expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("a child");
        assert!(output.status.success(), "{}\n{rules}", told(&output));
    }

    /// Runs a line such as `ip rule add fwmark 1 lookup 100` in the router.
    pub(crate) fn run(&self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (program, args) = words.split_first().expect("a program");
        run(program, args);
    }
}

impl Space {
    /// A namespace with a process that keeps it until there is a handle.
    fn new() -> Self {
        let holder = command("unshare")
            .args(["-n", "--", "sleep", "1000"])
            .spawn();
        let holder = holder.expect("util-linux is installed");
        let path = format!("/proc/{}/ns/net", holder.id());
        let own = std::fs::read_link("/proc/self/ns/net").expect("its own");
        wait_for("a namespace", || {
            std::fs::read_link(&path).is_ok_and(|link| link != own)
        });
        let handle = File::open(path).expect("a namespace");
        Self { handle, holder }
    }

    /// Connects it with the router: `name` is the interface there, `uplink` that
    /// in the namespace.
    fn join(&self, name: &str, [near4, near6, far4, far6]: [&str; 4]) {
        let pid = self.holder.id().to_string();
        let add = [
            "link", "add", name, "type", "veth", "peer", "name", "uplink",
        ];
        run("ip", &[&add[..], &["netns", &pid]].concat());
        for address in [near4, near6] {
            run("ip", &["address", "add", address, "dev", name, "nodad"]);
        }
        run("ip", &["link", "set", name, "up"]);
        let space = format!("--net=/proc/{pid}/ns/net");
        let inside = |args: &[&str]| run("nsenter", &[&[&space, "ip"], args].concat());
        for address in [far4, far6] {
            inside(&["address", "add", address, "dev", "uplink", "nodad"]);
        }
        inside(&["link", "set", "lo", "up"]);
        inside(&["link", "set", "uplink", "up"]);
        for router in [near4, near6] {
            let (router, _) = router.split_once('/').expect("a prefix");
            inside(&["route", "add", "default", "via", router]);
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

fn run(program: &str, args: &[&str]) {
    let output = command(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is not installed: {error}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        told(&output)
    );
}

/// Some of the programs are where only root looks for them.
fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn told(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Set for tests that run as the router.
const INSIDE: &str = "PROXYD_TEST_IS_ROUTER";

/// The router's addresses on that side and those at the other end.
const CLIENT: [&str; 4] = ["10.1.0.1/24", "fd01::1/64", "10.1.0.2/24", "fd01::2/64"];
const SERVER: [&str; 4] = [
    "45.66.77.1/24",
    "2a0a:1:2:3::1/64",
    "45.66.77.2/24",
    "2a0a:1:2:3::2/64",
];
