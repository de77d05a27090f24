//! The header of SOCKS datagrams: whole or not at all, and what is taken is
//! written back the same.
#![no_main]

use bytes::BytesMut;
use proxy_core::{Host, Status};
use proxy_socks::wire::UdpHeader;

libfuzzer_sys::fuzz_target!(|datagram: &[u8]| {
    let Ok(Status::Complete(header, used)) = UdpHeader::parse(datagram) else {
        return;
    };
    for cut in 0..used {
        assert_eq!(UdpHeader::parse(&datagram[..cut]), Ok(Status::Partial));
    }
    let mut wire = BytesMut::new();
    header.encode(&mut wire).expect("it was valid");
    let again = UdpHeader::parse(&wire);
    assert_eq!(again, Ok(Status::Complete(header, wire.len())));
    if let Host::Ip(ip) = header.target.host {
        let mut own = BytesMut::new();
        UdpHeader::encode_from((ip, header.target.port).into(), &mut own);
        assert_eq!(own[3..], wire[3..]);
    }
});
