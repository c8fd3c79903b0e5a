//! Events of mail to other hosts as bytes.

use bytes::{BufMut, BytesMut};
use posthaste_spool::Lsn;

use super::{Fields, put_text};
use crate::event::{Admin, AdminTarget, Feedback, OfRelay, RelayFate};

pub(super) fn put_of_relay(out: &mut BytesMut, of: &OfRelay) {
    let OfRelay { status, reply, host, source, class, sender, recipient, tenant, campaign, .. } = of;
    out.put_u8(fate_number(of.fate));
    out.put_u64_le(of.message.get());
    out.put_u16_le(of.number);
    out.put_u8(of.attempts);
    out.put_u32_le(of.age_secs);
    out.put_u32_le(of.next);
    out.put_u16_le(of.code);
    let texts = [status, reply, host, source, class, sender, recipient, tenant, campaign];
    texts.into_iter().for_each(|text| put_text(out, text));
}

pub(super) fn put_admin(out: &mut BytesMut, admin: &Admin) {
    let Admin { action, uid, reason, scope, name, until, targets } = admin;
    out.put_u32_le(*uid);
    out.put_u32_le(*until);
    [action, reason, scope, name].into_iter().for_each(|text| put_text(out, text));
    for AdminTarget { message, number, recipient } in targets {
        out.put_u64_le(message.get());
        out.put_u16_le(*number);
        put_text(out, recipient);
    }
}

pub(super) fn put_feedback(out: &mut BytesMut, of: &Feedback) {
    let Feedback { kind, reporter, sender, recipient, message_id, status, text, tenant, campaign, .. } = of;
    out.put_u64_le(of.report.get());
    out.put_u64_le(of.message.get());
    out.put_u16_le(of.number);
    let texts = [kind, reporter, sender, recipient, message_id, status, text, tenant, campaign];
    texts.into_iter().for_each(|text| put_text(out, text));
}

impl Fields {
    pub(super) fn of_relay(&mut self) -> Option<OfRelay> {
        let fate = match self.u8()? {
            1 => RelayFate::Delivered,
            2 => RelayFate::Deferred,
            3 => RelayFate::Unknown,
            4 => RelayFate::Bounced,
            5 => RelayFate::Expired,
            6 => RelayFate::Suppressed,
            _ => return None,
        };
        Some(OfRelay {
            fate,
            message: Lsn::new(self.u64()?),
            number: self.u16()?,
            attempts: self.u8()?,
            age_secs: self.u32()?,
            next: self.u32()?,
            code: self.u16()?,
            status: self.text()?,
            reply: self.text()?,
            host: self.text()?,
            source: self.text()?,
            class: self.text()?,
            sender: self.text()?,
            recipient: self.text()?,
            tenant: self.text()?,
            campaign: self.text()?,
        })
    }

    pub(super) fn admin(&mut self) -> Option<Admin> {
        let (uid, until) = (self.u32()?, self.u32()?);
        let (action, reason, scope, name) = (self.text()?, self.text()?, self.text()?, self.text()?);
        let mut targets = Vec::new();
        while !self.0.is_empty() {
            let (message, number) = (Lsn::new(self.u64()?), self.u16()?);
            targets.push(AdminTarget { message, number, recipient: self.text()? });
        }
        Some(Admin { action, uid, reason, scope, name, until, targets })
    }

    pub(super) fn feedback(&mut self) -> Option<Feedback> {
        let (report, message, number) = (Lsn::new(self.u64()?), Lsn::new(self.u64()?), self.u16()?);
        Some(Feedback {
            report,
            message,
            number,
            kind: self.text()?,
            reporter: self.text()?,
            sender: self.text()?,
            recipient: self.text()?,
            message_id: self.text()?,
            status: self.text()?,
            text: self.text()?,
            tenant: self.text()?,
            campaign: self.text()?,
        })
    }
}

fn fate_number(fate: RelayFate) -> u8 {
    match fate {
        RelayFate::Delivered => 1,
        RelayFate::Deferred => 2,
        RelayFate::Unknown => 3,
        RelayFate::Bounced => 4,
        RelayFate::Expired => 5,
        RelayFate::Suppressed => 6,
    }
}
