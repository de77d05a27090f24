//! What `proxyd` says of configuration files without serving.

use std::process::Command;

/// Exit status and lines of `proxyd check --config F`, where F is the first of
/// these files, in a folder of their own.
pub(crate) fn check(files: &[(&str, &str)], more: &[&str]) -> (Option<i32>, Vec<String>) {
    let config = files.first().map_or("", |(name, _)| name);
    let args = [&["check", "--config", config], more].concat();
    run_beside(files, &args)
}

/// Exit status and lines of `proxyd` with these arguments, beside these files.
pub(crate) fn run_beside(files: &[(&str, &str)], args: &[&str]) -> (Option<i32>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_proxyd"))
        .current_dir(folder.path())
        .args(args)
        .output()
        .expect("started");
    let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    let lines = text.lines().map(str::to_owned).collect();
    (output.status.code(), lines)
}
