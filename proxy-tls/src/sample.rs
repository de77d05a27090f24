//! ClientHellos for tests, well and badly formed.

/// Builds the parts of a ClientHello; every field can be spoilt.
pub(crate) struct Sample {
    pub(crate) session: Vec<u8>,
    pub(crate) suites: Vec<u8>,
    pub(crate) compressions: Vec<u8>,
    pub(crate) extensions: Vec<(u16, Vec<u8>)>,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            session: vec![7; 32],
            suites: vec![0x13, 1, 0x13, 2],
            compressions: vec![0],
            extensions: Vec::new(),
        }
    }
}

impl Sample {
    /// One extension more.
    pub(crate) fn with(mut self, kind: u16, value: impl Into<Vec<u8>>) -> Self {
        self.extensions.push((kind, value.into()));
        self
    }

    pub(crate) fn named(self, name: &[u8]) -> Self {
        let entry = [&[0][..], &long(name)].concat();
        self.with(0, long(&entry))
    }

    pub(crate) fn alpn(self, protocols: &[&[u8]]) -> Self {
        let list: Vec<u8> = protocols.iter().flat_map(|name| short(name)).collect();
        self.with(16, long(&list))
    }

    /// The body without type and length.
    pub(crate) fn body(&self) -> Vec<u8> {
        let extension =
            |(kind, value): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &long(value)].concat();
        let extensions: Vec<u8> = self.extensions.iter().flat_map(extension).collect();
        let fixed = [&[3, 3][..], &[5; 32]].concat();
        [
            fixed,
            short(&self.session),
            long(&self.suites),
            short(&self.compressions),
            long(&extensions),
        ]
        .concat()
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        message(&self.body())
    }
}

/// A handshake message of type `client_hello`.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    [&[1, 0][..], &long(body)].concat()
}

/// Handshake records of at most `size` bytes each.
pub(crate) fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part| [&[22, 3, 1][..], &long(part)].concat();
    message.chunks(size).flat_map(record).collect()
}

pub(crate) fn short(field: &[u8]) -> Vec<u8> {
    let len = u8::try_from(field.len()).expect("a short field");
    [&[len][..], field].concat()
}

pub(crate) fn long(field: &[u8]) -> Vec<u8> {
    let len = u16::try_from(field.len()).expect("a long field");
    [&len.to_be_bytes()[..], field].concat()
}
