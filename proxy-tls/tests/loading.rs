//! Certificates and keys from files, and what is said about bad ones.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::Identity;
use proxy_tls::{CertificateProblem, PostQuantum, load_certificate, load_roots, provider};
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }
}

fn complaint(chain: &Path, key: &Path) -> String {
    let provider = provider(PostQuantum::Omit);
    let error = load_certificate(&provider, chain, key).expect_err("bad");
    let dir = chain.parent().expect("in a directory");
    error
        .to_string()
        .replace(&format!("{}/", dir.display()), "")
}

#[test]
fn good_pairs() {
    let files = Files::new();
    let (id, other) = (Identity::localhost(), Identity::localhost());
    let provider = provider(PostQuantum::Omit);
    let chain = files.put("c.pem", &id.chain_pem);
    let key = files.put("k.pem", &id.key_pem);
    let pair = load_certificate(&provider, &chain, &key).expect("good");
    assert_eq!(pair.cert, std::slice::from_ref(&id.chain));
    // Both in one file, with text between, in any order.
    let text = format!("{}\nnotes\n{}{}", id.key_pem, id.chain_pem, other.chain_pem);
    let both = files.put("both.pem", &text);
    let pair = load_certificate(&provider, &both, &both).expect("good");
    assert_eq!(pair.cert, [id.chain, other.chain]);
}

/// Keys in the forms of `openssl genrsa -traditional` and `openssl ecparam
/// -genkey`, with certificates.
#[test]
fn older_forms_of_keys() {
    let provider = provider(PostQuantum::Omit);
    for form in ["pkcs1", "sec1"] {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{form}.pem"));
        load_certificate(&provider, &file, &file).expect(form);
    }
}

#[test]
fn bad_pairs() {
    let files = Files::new();
    let (id, other) = (Identity::localhost(), Identity::localhost());
    let chain = files.put("c.pem", &id.chain_pem);
    let key = files.put("k.pem", &id.key_pem);
    let foreign = files.put("other.pem", &other.key_pem);
    let empty = files.put("empty.pem", "");
    let missing = files.0.path().join("missing.pem");
    let locked = files.put(
        "locked.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let cut = files.put("cut.pem", &id.chain_pem[..id.chain_pem.len() - 30]);
    let wrong = files.put(
        "wrong.pem",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    );
    let odd = files.put(
        "odd.pem",
        "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n",
    );
    for (chain, key, expected) in [
        (&empty, &key, "empty.pem: no certificate found"),
        (&key, &key, "k.pem: no certificate found"),
        (&chain, &empty, "empty.pem: no private key found"),
        (&chain, &chain, "c.pem: no private key found"),
        (
            &chain,
            &foreign,
            "other.pem: the private key does not match the certificate in c.pem",
        ),
        (
            &chain,
            &locked,
            "locked.pem: the private key is encrypted; it must be stored without a password",
        ),
        (
            &missing,
            &key,
            "missing.pem: cannot be read: No such file or directory (os error 2)",
        ),
    ] {
        assert_eq!(complaint(chain, key), expected);
    }
    for (chain, key, start) in [
        (&cut, &key, "cut.pem: malformed PEM: "),
        (&wrong, &key, "wrong.pem: the certificate cannot be used: "),
        (&chain, &odd, "odd.pem: the private key cannot be used: "),
    ] {
        let told = complaint(chain, key);
        assert!(told.starts_with(start), "{told}");
    }
}

#[test]
fn roots() {
    let files = Files::new();
    let (a, b) = (Identity::localhost(), Identity::localhost());
    let bundle = files.put("ca.pem", &format!("{}{}", a.chain_pem, b.chain_pem));
    assert_eq!(load_roots(&bundle).expect("good").len(), 2);
    let key = files.put("k.pem", &a.key_pem);
    let error = load_roots(&key).expect_err("a key");
    assert!(matches!(error.problem, CertificateProblem::NoCertificate));
    assert_eq!(error.file, key);
}
