//! `explain` tells the truth: what it says of a thousand configurations and
//! requests is what the gateway then does, over real sockets.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Credentials, Denial, Gateway, Host, Peer, Target, Timeouts,
};
use proxy_relay::{Associations, Dialer, Family, Resolve, Resolved};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::explain::{Asked, Explanation, Question};
use super::tests::config;
use super::{Moment, Policy, Usual};
use crate::bind::Landing;
use crate::config::{Config, Via};
use crate::gateway::Proxyd;
use crate::idle::Idle;
use crate::log::AccessLog;
use crate::outside::{Means, Outside};
use crate::own::OwnAddresses;
use crate::parents::{self, Parents};
use crate::sources::Sources;
use crate::users::{Door, Table};

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Forbidden,
    /// Nobody knows the name.
    NoAddress,
    /// It came out here, from this address if one was chosen.
    Reached(IpAddr, Option<IpAddr>),
}

/// Listeners at several addresses of loopback on one port: targets, and the
/// parents, which are distinguished by their addresses alone.
struct World {
    port: u16,
    arrivals: tokio::sync::mpsc::UnboundedReceiver<(IpAddr, IpAddr)>,
}

impl World {
    async fn new() -> Self {
        let (tell, arrivals) = tokio::sync::mpsc::unbounded_channel();
        let mut port = 0;
        for last in TARGETS.into_iter().chain(PARENTS) {
            let listener = listen(last, port).expect("a free port");
            port = listener.local_addr().expect("bound").port();
            let tell = tell.clone();
            let is_parent = PARENTS.contains(&last);
            tokio::task::spawn_local(async move {
                while let Ok((mut stream, from)) = listener.accept().await {
                    let _ = tell.send((address(last), from.ip()));
                    if is_parent {
                        tokio::task::spawn_local(async move {
                            // A whole request for a tunnel fits in a segment.
                            let _ = stream.read(&mut [0; 2048]).await;
                            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                            let _ = stream.read(&mut [0; 16]).await;
                        });
                    }
                }
            });
        }
        Self { port, arrivals }
    }
}

/// Answers at once and counts the questions.
#[derive(Debug, Default)]
struct Names {
    known: HashMap<String, Vec<IpAddr>>,
    asked: AtomicUsize,
}

impl Resolve for Names {
    fn resolve<'a>(
        &'a self,
        name: &'a str,
        family: Family,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>>
    {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        let known = self.known.get(name).map(|all| Resolved {
            addresses: all.iter().filter(of_family).copied().collect(),
            ttl: std::time::Duration::from_secs(60),
        });
        Box::pin(async move { known.ok_or(ConnectErrorKind::NameNotFound) })
    }
}

#[tokio::test]
async fn explain_agrees_with_what_happens() {
    let local = tokio::task::LocalSet::new();
    local.run_until(compare()).await;
}

async fn compare() {
    let mut world = World::new().await;
    let mut seen = [0; 3];
    for seed in 0..CASES {
        let mut dice = Dice(seed);
        let toml = dice.configuration(world.port);
        let config = config(&toml);
        let question = dice.question(&config, world.port);
        let names = Arc::new(dice.names());
        let policy = Policy::new(&config).at(dice.moment());

        let looked_up = Cell::new(false);
        let explained = Explanation::new(&config, &policy, &question, |name| {
            looked_up.set(true);
            names.known.get(name).cloned().unwrap_or_default()
        });
        let said = explained.to_string();
        let policy = Arc::new(policy);
        let happened = act(&mut world, &config, policy, &names, &question).await;
        let context = || format!("case {seed}\n{toml}\n{question:?}\n{names:?}\n{said}");
        match (explained.goes(), &happened) {
            (None, Fate::Forbidden) => seen[0] += 1,
            (
                Some(Usual {
                    via: Via::Direct, ..
                }),
                Fate::NoAddress,
            ) => {
                assert!(said.contains("address: none"), "{}", context());
                seen[1] += 1;
            }
            (Some(way), Fate::Reached(at, from)) => {
                let expected = match way.via {
                    Via::Direct => TARGETS.map(address).to_vec(),
                    Via::Parent(parent) => vec![address(PARENTS[usize::from(parent)])],
                };
                assert!(expected.contains(at), "came out at {at}\n{}", context());
                if way.via == Via::Direct
                    && matches!(question.target.as_target().host, Host::Name(_))
                {
                    let line = format!("address: {at}, allow");
                    assert!(said.contains(&line), "came out at {at}\n{}", context());
                }
                let chosen = way
                    .source
                    .map(|source| address(SOURCES[usize::from(source)]));
                if chosen.is_some() {
                    assert_eq!(*from, chosen, "{}", context());
                }
                seen[2] += 1;
            }
            (told, _) => panic!("told {told:?}, happened {happened:?}\n{}", context()),
        }
        if !looked_up.get() {
            assert_eq!(names.asked.load(Ordering::Relaxed), 0, "{}", context());
        }
    }
    // All kinds of fate have to be among them for this to mean anything.
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
}

/// Lets a client of the gateway do what is asked about.
async fn act(
    world: &mut World,
    config: &Config,
    policy: Arc<Policy>,
    names: &Arc<Names>,
    question: &Question,
) -> Fate {
    let mut dialer = Dialer::new(&Timeouts::default());
    dialer.resolver(Arc::clone(names) as Arc<dyn Resolve>);
    let means = Means {
        policy,
        dialer,
        sources: Sources::new(&config.sources),
        parents: Parents::new(
            parents::load(config).map_err(drop).expect("no files"),
            &Timeouts::default(),
        ),
        associations: Associations::new(),
        own: OwnAddresses::new(config.listeners.iter().map(|own| own.address)),
        tls: None,
        egress: None,
        speeds: None,
        idle: Idle::new(8, &config.limits),
        landing: Landing::new(config),
        counts: None,
        log: AccessLog::off(),
    };
    let outside = Rc::new(Outside::new(means));
    let door = Door::new(Table::of(&config.users), &config.auth, 0).expect("a door");
    let asks = config.listeners[question.listener].auth;
    let users = asks.then(|| Arc::new(door));
    let gateway = Proxyd::new(question.listener, "test".to_owned(), users, outside);
    match ask(&gateway, question).await {
        Ok(upstream) => {
            let (at, from) = world.arrivals.recv().await.expect("an arrival");
            drop(upstream);
            Fate::Reached(at, Some(from))
        }
        Err(fate) => fate,
    }
}

async fn ask(gateway: &Proxyd, question: &Question) -> Result<crate::upstream::Upstream, Fate> {
    let peer = Peer {
        remote: SocketAddr::new(question.client, 1),
        local: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
    };
    let who = question.user.as_ref().map(|user| Credentials {
        user: user.as_bytes(),
        password: PASSWORD.as_bytes(),
    });
    let denied = |denial: Denial| {
        assert!(matches!(denial, Denial::Challenge | Denial::Forbid));
        Fate::Forbidden
    };
    let client = gateway.authenticate(&peer, who).await.map_err(denied)?;
    let target = question.target.as_target();
    let ask = Ask {
        peer: &peer,
        operation: question.asked.operation(),
        target,
        via: None,
        secure: false,
    };
    let mut session = gateway.authorize(&client, &ask).await.map_err(denied)?;
    let connected = gateway.connect(&mut session, target).await;
    connected
        .map(|connected| connected.upstream)
        .map_err(|error: ConnectError| match error.kind {
            ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => Fate::Forbidden,
            ConnectErrorKind::NameNotFound => Fate::NoAddress,
            _ => panic!("{error}"),
        })
}

/// A fixed sequence of choices (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).expect("few sides")
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }

    fn configuration(&mut self, port: u16) -> String {
        let mut toml = String::new();
        if self.roll(4) == 0 {
            toml += &format!("via = \"{}\"\n", self.of(&["direct", "p0", "p1"]));
        }
        for (at, last) in PARENTS.into_iter().enumerate() {
            let ip = address(last);
            toml += &format!("[[parent]]\nname = \"p{at}\"\nurl = \"http://{ip}:{port}\"\n");
        }
        for (at, last) in SOURCES.into_iter().enumerate() {
            let ip = address(last);
            toml += &format!("[[source]]\nname = \"s{at}\"\naddresses = [\"{ip}\"]\n");
        }
        for at in 0..2 {
            toml += &format!(
                "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:{}\"\nname = \"l{at}\"\n\
                 auth = false\n",
                at + 1
            );
            toml += match self.roll(8) {
                0 => "via = \"p0\"\n",
                1 => "source = \"s0\"\n",
                2 => "clients = \"127.0.0.0/8\"\n",
                3 => "trust_loopback = false\n",
                _ => "",
            };
        }
        toml += "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:3\"\n";
        for user in USERS {
            toml += &format!("[[user]]\nname = \"{user}\"\npassword = \"{PASSWORD}\"\n");
            if self.roll(6) == 0 {
                toml += "source = \"s1\"\n";
            }
        }
        for _ in 0..self.roll(6) {
            toml += &self.rule(port);
        }
        toml
    }

    fn rule(&mut self, port: u16) -> String {
        let mut rule = String::from("[[rule]]\n");
        rule += match self.roll(3) {
            0 => "action = \"deny\"\n",
            _ => "action = \"allow\"\n",
        };
        if rule.contains("allow") {
            rule += self.of(&[
                "",
                "",
                "via = \"direct\"\n",
                "via = \"p0\"\n",
                "via = \"p1\"\n",
            ]);
            rule += self.of(&["", "", "source = \"s0\"\n", "source = \"s1\"\n"]);
        }
        for _ in 0..self.roll(3) {
            let condition = match self.roll(9) {
                0 => self.of(&["from = \"127.0.0.1\"", "from = \"198.51.100.0/24\""]),
                1 => self.of(&["users = \"alice\"", "users = [\"alice\", \"bob\"]"]),
                2 => self.of(&["listeners = \"l0\"", "listeners = \"l1\""]),
                3 => self.of(&[
                    "names = \"a.example\"",
                    "names = \"*.example\"",
                    "names = \"b.test\"",
                ]),
                4 | 5 => self.of(&[
                    "networks = \"127.0.0.0/8\"",
                    "networks = \"127.0.0.11\"",
                    "networks = [\"127.0.0.12\", \"10.0.0.0/8\"]",
                    "networks = \"0.0.0.0/0\"",
                ]),
                6 => self.of(&[
                    "operations = \"tunnel\"",
                    "operations = \"request\"",
                    "methods = \"GET\"",
                ]),
                7 => self.of(&["hours = \"08:00-18:00\"", "days = \"mon-fri\""]),
                _ => return rule + &format!("ports = \"{port}\"\n"),
            };
            let key = condition.split(' ').next().unwrap_or_default();
            // Each key once, and a method is that of a request.
            let clash = ["methods", "operations"].contains(&key)
                && (rule.contains("methods") || rule.contains("operations"));
            if !clash && !rule.contains(&format!("\n{key} = ")) {
                rule += condition;
                rule += "\n";
            }
        }
        rule
    }

    fn question(&mut self, config: &Config, port: u16) -> Question {
        let hosts = [
            "127.0.0.1",
            "127.0.0.11",
            "127.0.0.12",
            "127.0.0.13",
            "a.example",
            "b.example",
            "b.test",
            "c.test",
            "none.test",
            "none.example",
        ];
        let target = match self.of(&hosts) {
            // A listener of the proxy itself.
            own @ "127.0.0.1" => format!("{own}:1"),
            host => format!("{host}:{port}"),
        };
        let target = Target::parse(&target, None).expect("a target").into();
        let client = self.of(&["127.0.0.1", "127.0.0.1", "198.51.100.7", "203.0.113.7"]);
        Question {
            client: client.parse().expect("an address"),
            user: self
                .of(&[None, Some("alice"), Some("bob")])
                .map(str::to_owned),
            listener: self.roll(config.listeners.len()),
            asked: match self.roll(3) {
                0 => Asked::Request(self.of(&["GET", "POST"]).to_owned()),
                _ => Asked::Tunnel,
            },
            target,
        }
    }

    fn names(&mut self) -> Names {
        let mut known = HashMap::new();
        for name in ["a.example", "b.example", "b.test", "c.test"] {
            let count = 1 + self.roll(3);
            let addresses = (0..count).map(|_| address(self.of(&TARGETS))).collect();
            known.insert(name.to_owned(), addresses);
        }
        Names {
            known,
            asked: AtomicUsize::new(0),
        }
    }

    fn moment(&mut self) -> Moment {
        Moment {
            weekday: self.of(&[0, 4, 5, 6]),
            minute: self.of(&[0, 479, 480, 600, 1080, 1439]),
        }
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// Listens on the port of the others, or on a free one.
fn listen(last: u8, port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(address(last), port))?;
    socket.listen(1024)
}

const CASES: u64 = 1_000;
const TARGETS: [u8; 3] = [11, 12, 13];
const PARENTS: [u8; 2] = [21, 22];
const SOURCES: [u8; 2] = [31, 32];
const USERS: [&str; 2] = ["alice", "bob"];
const PASSWORD: &str = "secret";
