//! Messages enclosed in each other to any depth.

#[cfg(test)]
mod tests {
    use crate::{extract, parts};

    /// Runs `work` on a stack of the size that threads get.
    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn messages_enclosed_to_any_depth_cost_no_stack() {
        let mail = "Content-Type: message/rfc822\n\n".repeat(200_000) + "Subject: core\n\nx\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            assert!(parts(mail.as_bytes()).len() > 50);
        });
    }

    /// Quoted-printable that encodes only what it must.
    fn quoted(mail: &str) -> String {
        format!("Content-Transfer-Encoding: quoted-printable\n\n{}", mail.replace('=', "=3D"))
    }

    #[test]
    fn messages_in_an_encoded_one_cost_no_stack_and_little_memory() {
        let inner = "Content-Type: message/rfc822\n\n".repeat(20_000) + "Subject: core\n\nx\n";
        let digest = |head: &str| {
            format!("Content-Type: multipart/digest; boundary=b\n\n--b\n{head}{}\n--b--\n", quoted(&inner))
        };
        let part = |head: &str| format!("{head}{}", quoted(&inner));
        for mail in [
            part("Content-Type: message/rfc822\n"),
            part("content-type: Message / RFC822 (x)\n"),
            part("Content-Type: message/global\n"),
            digest(""),
            digest("Content-Type:\n"),
            digest("Content-Type: text/plain\n--b\n"),
            part("Content-Type: (content-type) message/rfc822\n"),
            digest("Content-Type: message/rfc822\n"),
        ] {
            on_a_thread(move || {
                extract(mail.as_bytes());
                parts(mail.as_bytes());
            });
        }
    }

    #[test]
    fn a_message_enclosed_and_encoded_is_read() {
        let core = format!("Subject: core\nContent-Type: text/plain; name=rfc822.txt\n{}", quoted("g=x of rfc822"));
        let mail = format!("Subject: outer\nContent-Type: message/rfc822\n{}", quoted(&core));
        let found = extract(mail.as_bytes());
        assert!(found.body.contains("core") && found.body.contains("g=x of rfc822"), "{}", found.body);
        assert!(found.mimes.contains(&"message/rfc822".to_owned()), "{:?}", found.mimes);
        let all = parts(mail.as_bytes());
        let shape: Vec<_> = all.iter().map(|part| (part.media_type.as_str(), part.name.as_deref())).collect();
        assert_eq!(shape, [("message/rfc822", None), ("text/plain", Some("rfc822.txt"))]);
        assert_eq!((&*all[0].content, &*all[1].content), (core.as_bytes(), &b"g=x of rfc822"[..]));
    }

    #[test]
    fn multiparts_enclosed_to_any_depth_cost_no_stack() {
        let level = |n: u32| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n");
        let mail = (0..10_000).map(level).collect::<String>() + "\ncore\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            parts(mail.as_bytes());
        });
    }
}
