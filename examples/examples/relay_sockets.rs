//! Relays one connection after another to a fixed target, spliced when it pays.
//!
//! `cargo run -p examples --example relay_sockets -- 127.0.0.1:8000 example.com:80`

use std::error::Error;
use std::time::Duration;

use proxy_core::{Target, TargetBuf};
use proxy_relay::{Dialer, RelayOptions, relay};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(target)) = (args.next(), args.next()) else {
        return Err("usage: relay_sockets LISTEN TARGET".into());
    };
    let target = TargetBuf::from(Target::parse(&target, None)?);
    let listener = TcpListener::bind(listen).await?;
    println!("relaying {} to {target}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        tokio::spawn(tunnel(client, target.clone()));
    }
}

async fn tunnel(mut client: TcpStream, target: TargetBuf) {
    // Boxed, so that the task keeps no room for it while the tunnel lives.
    let dialled = Box::pin(async { Dialer::default().dial(target.as_target()).await }).await;
    let mut upstream = match dialled {
        Ok(upstream) => upstream,
        Err(error) => return println!("{target}: {error}"),
    };
    let mut options = RelayOptions::default();
    options
        .idle(Duration::from_secs(300))
        .first_byte(Duration::from_secs(30));
    let report = relay(&mut client, &mut upstream, &options).await;
    println!(
        "{} up, {} down, ended by {}",
        report.up, report.down, report.end
    );
}
