//! `proxyd explain`: what would become of a request, from its options to its
//! exit status.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use clap::Args;
use jiff::civil::DateTime;
use proxy_core::{Host, Target, TargetBuf};

use crate::config::{self, Config, Kind, Mismatch, Origin, Problem, nearest};
use crate::policy::{Asked, Explanation, Policy, Question};

/// The request that is asked about.
#[derive(Args, Clone, Debug)]
pub(crate) struct Explain {
    /// The user who asks; nobody without it. No password: the login is not
    /// checked.
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,

    /// The client's address.
    #[arg(long, value_name = "IP")]
    from: String,

    /// The target, IPv6 in brackets, or the URL of a request.
    #[arg(long, value_name = "HOST:PORT|URL")]
    to: String,

    /// The name of the listener that is asked [default: the first].
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,

    /// A request with this method.
    #[arg(long, value_name = "METHOD", conflicts_with = "operation")]
    method: Option<String>,

    /// request, tunnel, associate or bind [default: tunnel, or request for a URL].
    #[arg(long, value_name = "OPERATION")]
    operation: Option<String>,

    /// As if it were then, in the time of this machine [default: now].
    #[arg(long, value_name = "YYYY-MM-DDTHH:MM")]
    at: Option<String>,

    /// As if the target had this address, in place of a look-up; may be given
    /// again.
    #[arg(long, value_name = "IP")]
    address: Vec<String>,
}

impl Explain {
    /// Prints the explanation; answers whether the request is allowed.
    ///
    /// # Errors
    /// Every mistake in the options.
    pub(crate) fn run(&self, config: &Config) -> Result<bool, Vec<Problem>> {
        let mut problems = Vec::new();
        let question = self.question(config, &mut problems);
        let addresses = self.address.iter();
        let addresses: Vec<_> = addresses
            .filter_map(|text| option("--address", text, ip, &mut problems))
            .collect();
        let moment = self.at.as_ref();
        let moment = moment.and_then(|text| option("--at", text, time, &mut problems));
        let Some(question) = question.filter(|_| problems.is_empty()) else {
            return Err(problems);
        };
        let mut policy = Policy::new(config);
        if let Some(moment) = moment {
            policy = policy.at(moment.into());
        }
        let explanation = Explanation::new(config, &policy, &question, |name| {
            match addresses.is_empty() {
                true => look_up(name),
                false => addresses,
            }
        });
        // Nobody may be listening.
        let _ = write!(io::stdout(), "{explanation}");
        Ok(explanation.is_allowed())
    }

    fn question(&self, config: &Config, problems: &mut Vec<Problem>) -> Option<Question> {
        let client = option("--from", &self.from, ip, problems);
        let target = option("--to", &self.to, target, problems);
        let listener = match &self.listener {
            Some(name) => option("--listener", name, |name| listener(config, name), problems),
            None => Some(0),
        };
        let asked = match (&self.method, &self.operation) {
            (Some(method), _) => {
                option("--method", method, config::method, problems).map(Asked::Request)
            }
            (None, Some(kind)) => {
                option("--operation", kind, config::operation, problems).map(asked)
            }
            (None, None) if self.to.contains("://") => Some(asked(Kind::Request)),
            (None, None) => Some(Asked::Tunnel),
        };
        Some(Question {
            client: client?,
            user: self.user.clone(),
            listener: listener?,
            asked: asked?,
            target: target?,
        })
    }
}

fn option<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, Mismatch>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    read(text)
        .map_err(|mismatch| {
            let origin = Origin::argument(name);
            problems.push(Problem::mismatch(
                &origin,
                "",
                &mismatch,
                &config::shown(text),
            ));
        })
        .ok()
}

fn ip(text: &str) -> Result<IpAddr, Mismatch> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse().map_err(|_| {
        let meant = bare.parse().map(|ip: IpAddr| ip.to_string());
        Mismatch::new(
            "an IP address",
            meant.unwrap_or_else(|_| "192.0.2.7".to_owned()),
        )
    })
}

/// Reads a host and a port, or the URL of a request, whose port may be left out.
fn target(text: &str) -> Result<TargetBuf, Mismatch> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let port = match scheme.as_deref() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    let is_plain = scheme.is_none() && path.is_empty();
    match Target::parse(host, port) {
        Ok(target) if port.is_some() || is_plain => Ok(target.into()),
        _ => {
            let meant = Target::parse(host, Some(443)).map(|target| target.to_string());
            let meant = meant.unwrap_or_else(|_| "example.com:443".to_owned());
            Err(Mismatch::new(
                "a host and a port, or an http or https URL",
                meant,
            ))
        }
    }
}

fn time(text: &str) -> Result<DateTime, Mismatch> {
    text.parse()
        .map_err(|_| Mismatch::new("a date and a time", "2026-11-30T12:00"))
}

fn listener(config: &Config, name: &str) -> Result<usize, Mismatch> {
    let names: Vec<String> = config
        .listeners
        .iter()
        .map(|listener| listener.service(listener.address.port()))
        .collect();
    names.iter().position(|own| own == name).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let meant = nearest(name, &names).or_else(|| names.first().copied());
        Mismatch::new("the name of a listener", meant.unwrap_or("none"))
    })
}

fn asked(kind: Kind) -> Asked {
    match kind {
        Kind::Associate => Asked::Associate,
        Kind::Bind => Asked::Bind,
        Kind::Request => Asked::Request("GET".to_owned()),
        Kind::Tunnel => Asked::Tunnel,
    }
}

/// The addresses of a name, each once. That of this machine's own resolver may
/// differ from what a running proxyd finds.
fn look_up(name: &str) -> Vec<IpAddr> {
    if Host::Name(name).is_localhost() {
        // As proxyd itself has it.
        return vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
    }
    let mut addresses = Vec::new();
    for address in (name, 0).to_socket_addrs().into_iter().flatten() {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    addresses
}
