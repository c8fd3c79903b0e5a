//! The few parts of a certificate that a server reads (RFC 5280 section 4.1). All inputs are DER; malformed ones give
//! `None`.

/// Start and end of the validity, in seconds since 1970; `None` also if one is before that.
pub fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    let mut fields = from_issuer(certificate)?;
    element(&mut fields)?;
    let (_, mut validity) = element(&mut fields)?;
    let (tag, time) = element(&mut validity)?;
    let begin = seconds(tag, time)?;
    let (tag, time) = element(&mut validity)?;
    Some((begin, seconds(tag, time)?))
}

/// The octets of the serial number.
pub fn serial(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate) = element(&mut &*certificate)?;
    let (_, mut fields) = element(&mut &*certificate)?;
    let (tag, first) = element(&mut fields)?;
    if tag == VERSION { element(&mut fields).map(|(_, serial)| serial) } else { Some(first) }
}

/// The key identifier of the authority, if the certificate names it (section 4.2.1.1).
pub fn authority_key_id(certificate: &[u8]) -> Option<&[u8]> {
    const EXTENSIONS: u8 = 0xa3;
    const OID: &[u8] = &[0x55, 0x1d, 0x23];
    const OCTET_STRING: u8 = 0x04;
    const KEY_ID: u8 = 0x80;
    let mut fields = from_issuer(certificate)?;
    let mut extensions = loop {
        match element(&mut fields)? {
            (EXTENSIONS, mut all) => break element(&mut all)?.1,
            _ => continue,
        }
    };
    while let Some((_, mut extension)) = element(&mut extensions) {
        if element(&mut extension)?.1 != OID {
            continue;
        }
        // Whether it is critical may stand before its value.
        let mut value = loop {
            match element(&mut extension)? {
                (OCTET_STRING, value) => break value,
                _ => continue,
            }
        };
        let (_, mut parts) = element(&mut value)?;
        return element(&mut parts).filter(|(tag, _)| *tag == KEY_ID).map(|(_, id)| id);
    }
    None
}

/// Issuer and subject of a certificate, each in DER without its tag.
pub fn names(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = from_issuer(certificate)?;
    let (_, issuer) = element(&mut fields)?;
    element(&mut fields)?;
    let (_, subject) = element(&mut fields)?;
    Some((issuer, subject))
}

/// The text of a name returned by [`names`]: its organisation, else its common name (RFC 5280 section 4.1.2.4).
pub fn text_of_name(name: &[u8]) -> Option<String> {
    const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let part = |wanted: &[u8]| {
        let mut sets = name;
        while let Some((_, mut set)) = element(&mut sets) {
            while let Some((_, mut part)) = element(&mut set) {
                let ((_, kind), (_, text)) = (element(&mut part)?, element(&mut part)?);
                if kind == wanted {
                    return Some(String::from_utf8_lossy(text).into_owned());
                }
            }
        }
        None
    };
    part(ORGANISATION).or_else(|| part(COMMON_NAME))
}

/// The fields of a certificate from its issuer on.
fn from_issuer(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate) = element(&mut &*certificate)?;
    let (_, mut fields) = element(&mut &*certificate)?;
    // The version has a tag of its own, and may be missing. Then come the serial number and the algorithm.
    let first = element(&mut fields)?;
    for _ in 0..if first.0 == VERSION { 2 } else { 1 } {
        element(&mut fields)?;
    }
    Some(fields)
}

/// The tag of the version, which may be missing.
const VERSION: u8 = 0xa0;

/// Takes an element of DER (X.690 section 8.1): its tag and its contents.
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, after) = rest.split_first()?;
    let (&first, mut after) = after.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let octets;
        (octets, after) = after.split_at_checked(usize::from(first & 0x7f)).filter(|(octets, _)| octets.len() <= 4)?;
        length = octets.iter().fold(0, |length, octet| length << 8 | usize::from(*octet));
    }
    let contents;
    (contents, *rest) = after.split_at_checked(length)?;
    Some((tag, contents))
}

/// Parses UTCTime, whose years begin with 1950, or GeneralizedTime; both end in Z and have seconds.
fn seconds(tag: u8, time: &[u8]) -> Option<u64> {
    let digits = time.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (0x17, 12) => (number(&digits[..2]), &digits[2..]),
        (0x18, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let year = if tag == 0x17 { year + if year < 50 { 2000 } else { 1900 } } else { year };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - DAYS_TO_1970) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_certificates_have_them() {
        let check = |tag: u8, text: &str, expected: Option<u64>| {
            assert_eq!(seconds(tag, text.as_bytes()), expected, "{text}");
        };
        check(0x17, "700101000000Z", Some(0));
        check(0x17, "000229235959Z", Some(951_868_799));
        check(0x17, "491231235959Z", Some(2_524_607_999));
        check(0x18, "20500101000000Z", Some(2_524_608_000));
        check(0x18, "99991231235959Z", Some(253_402_300_799));
        for bad in ["", "Z", "700001000000Z", "7001010000Z", "700101000000", "70010100000xZ", "691231235959Z"] {
            check(0x17, bad, None);
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_found_and_of_nothing_else() {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let der = certificate.der();
        assert_eq!(validity(der).unwrap().1, 1_935_792_000);
        for end in 0..der.len() {
            assert_eq!(validity(&der[..end]), None, "{end}");
            assert_eq!((names(&der[..end]), authority_key_id(&der[..end])), (None, None), "{end}");
        }
    }

    #[test]
    fn serial_and_authority_are_those_of_the_extension() {
        let key = || rcgen::KeyPair::generate().unwrap();
        let mut root = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        root.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![7, 8, 9]);
        let issuer = rcgen::Issuer::new(root, key());
        let mut own = rcgen::CertificateParams::new(vec!["mx.example.org".to_owned()]).unwrap();
        own.serial_number = Some(vec![0x01, 0x02, 0x03].into());
        own.use_authority_key_identifier_extension = true;
        let signed = own.clone().signed_by(&key(), &issuer).unwrap();
        assert_eq!(serial(signed.der()), Some(&[1, 2, 3][..]));
        assert_eq!(authority_key_id(signed.der()), Some(&[7, 8, 9][..]));
        own.use_authority_key_identifier_extension = false;
        assert_eq!(authority_key_id(own.signed_by(&key(), &issuer).unwrap().der()), None);
    }
}
