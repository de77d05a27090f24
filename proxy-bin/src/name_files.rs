//! The hosts file and resolv.conf: read at the start, and again when they change.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config;
use crate::mark::Mark;
use crate::resolver::NameService;

/// The two files. Reads them: not for a thread that serves.
#[derive(Debug)]
pub(crate) struct NameFiles {
    config: config::Resolver,
    hosts: PathBuf,
    resolv_conf: PathBuf,
    /// What they were like when they were read last.
    seen: RefCell<[Option<Mark>; 2]>,
    tell: watch::Sender<Arc<NameService>>,
}

impl NameFiles {
    /// Those of the system.
    pub(crate) fn of_system(config: &config::Resolver) -> Self {
        Self::new(config, "/etc/hosts".into(), "/etc/resolv.conf".into())
    }

    fn new(config: &config::Resolver, hosts: PathBuf, resolv_conf: PathBuf) -> Self {
        let seen = [Mark::of(&hosts), Mark::of(&resolv_conf)];
        let service = NameService::read(config, &hosts, &resolv_conf);
        Self {
            config: config.clone(),
            hosts,
            resolv_conf,
            seen: RefCell::new(seen),
            tell: watch::Sender::new(Arc::new(service)),
        }
    }

    /// What is in them, now and whenever they change.
    pub(crate) fn service(&self) -> watch::Receiver<Arc<NameService>> {
        self.tell.subscribe()
    }

    /// Takes over what has changed.
    pub(crate) fn look(&self) {
        let marks = [Mark::of(&self.hosts), Mark::of(&self.resolv_conf)];
        if self.seen.replace(marks) != marks {
            let service = NameService::read(&self.config, &self.hosts, &self.resolv_conf);
            tracing::info!("the hosts file and resolv.conf were read anew");
            self.tell.send_replace(Arc::new(service));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_relay::Family;
    use std::path::Path;

    async fn address(service: &watch::Receiver<Arc<NameService>>, name: &str) -> Option<String> {
        let resolver = service.borrow().resolver().expect("a resolver");
        let resolved = resolver.resolve(name, Family::V4).await.ok()?;
        resolved.addresses.first().map(ToString::to_string)
    }

    #[tokio::test]
    async fn p37_a_changed_hosts_file_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = folder.path().join("hosts");
        let write = |text: &str| std::fs::write(&hosts, text).expect("written");
        let none = Path::new("/nowhere/resolv.conf").to_owned();
        let files = NameFiles::new(&config::Resolver::default(), hosts.clone(), none);
        let service = files.service();
        assert_eq!(address(&service, "new.example").await, None);
        write("192.0.2.1 new.example\n");
        files.look();
        let found = address(&service, "new.example").await;
        assert_eq!(found.as_deref(), Some("192.0.2.1"));
        // Nothing is read that is as it was.
        let mut unchanged = files.service();
        files.look();
        assert!(!unchanged.has_changed().expect("the sender is there"));
        std::fs::remove_file(&hosts).expect("removed");
        files.look();
        assert!(unchanged.has_changed().expect("the sender is there"));
        unchanged.mark_unchanged();
        assert_eq!(address(&service, "new.example").await, None);
    }
}
