//! The record at `_mta-sts` (RFC 8461 section 3.1).

/// The id of a domain's policy in the TXT records at `_mta-sts.DOMAIN`: 1 to 32 letters and digits. `None` unless
/// exactly one MTA-STS record exists and has an id.
pub fn policy_id(texts: &[String]) -> Option<&str> {
    let is_sts = |text: &&String| {
        text.strip_prefix("v=STSv1").is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with(';'))
    };
    let mut records = texts.iter().filter(is_sts);
    let record = records.next().filter(|_| records.next().is_none())?;
    let mut fields = record.split(';').skip(1).filter_map(|field| field.trim_matches([' ', '\t']).split_once('='));
    let (_, id) = fields.find(|(key, _)| *key == "id")?;
    let is_id = (1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_record_with_an_id_counts() {
        let id = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            policy_id(&texts).map(str::to_owned)
        };
        for text in
            ["v=STSv1; id=20160831085700Z;", "v=STSv1;id=20160831085700Z", "v=STSv1 ; a=b ; id=20160831085700Z ; c=d"]
        {
            assert_eq!(id(&[text, "v=spf1 -all"]).as_deref(), Some("20160831085700Z"), "{text}");
        }
        let long = format!("v=STSv1; id={};", "a".repeat(33));
        for text in
            ["", "v=STSv1", "v=STSv1;", "v=STSv1; id=", "v=STSv1; id=a-b", "v=STSv11; id=a", " v=STSv1; id=a", &long]
        {
            assert_eq!(id(&[text]), None, "{text}");
        }
        assert_eq!(id(&["v=STSv1; id=a;", "v=STSv1; id=a;"]), None, "two are none");
    }
}
