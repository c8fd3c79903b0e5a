//! Events of mail to other hosts as bytes.

use bytes::{BufMut, BytesMut};
use posthaste_spool::Fields;

use super::text::{put_short, text};
use crate::event::{Admin, AdminTarget, Feedback, OfRelay, RelayFate};

pub(super) fn put_of_relay(out: &mut BytesMut, of: &OfRelay) {
    let OfRelay { status, reply, host, stage, source, class, sender, recipient, tenant, campaign, .. } = of;
    out.put_u8(fate_number(of.fate));
    out.put_u64_le(of.message.get());
    out.put_u16_le(of.number);
    out.put_u8(of.attempts);
    out.put_u32_le(of.age_secs);
    out.put_u32_le(of.next);
    out.put_u16_le(of.code);
    let texts = [status, reply, host, stage, source, class, sender, recipient, tenant, campaign];
    texts.into_iter().for_each(|text| put_short(out, text));
}

pub(super) fn put_admin(out: &mut BytesMut, admin: &Admin) {
    let Admin { action, uid, token, reason, scope, name, until, targets } = admin;
    out.put_u32_le(*uid);
    out.put_u32_le(*until);
    [action, token, reason, scope, name].into_iter().for_each(|text| put_short(out, text));
    for AdminTarget { message, number, recipient } in targets {
        out.put_u64_le(message.get());
        out.put_u16_le(*number);
        put_short(out, recipient);
    }
}

pub(super) fn put_feedback(out: &mut BytesMut, of: &Feedback) {
    let Feedback { kind, reporter, sender, recipient, message_id, status, text, tenant, campaign, .. } = of;
    out.put_u64_le(of.report.get());
    out.put_u64_le(of.message.get());
    out.put_u16_le(of.number);
    let texts = [kind, reporter, sender, recipient, message_id, status, text, tenant, campaign];
    texts.into_iter().for_each(|text| put_short(out, text));
}

pub(super) fn of_relay(rest: &mut Fields<'_>) -> Option<OfRelay> {
    let fate = match rest.u8()? {
        1 => RelayFate::Delivered,
        2 => RelayFate::Deferred,
        3 => RelayFate::Unknown,
        4 => RelayFate::Bounced,
        5 => RelayFate::Expired,
        6 => RelayFate::Suppressed,
        7 => RelayFate::DoubleBounced,
        8 => RelayFate::Interrupted,
        _ => return None,
    };
    Some(OfRelay {
        fate,
        message: rest.lsn()?,
        number: rest.u16()?,
        attempts: rest.u8()?,
        age_secs: rest.u32()?,
        next: rest.u32()?,
        code: rest.u16()?,
        status: text(rest)?,
        reply: text(rest)?,
        host: text(rest)?,
        stage: text(rest)?,
        source: text(rest)?,
        class: text(rest)?,
        sender: text(rest)?,
        recipient: text(rest)?,
        tenant: text(rest)?,
        campaign: text(rest)?,
    })
}

pub(super) fn admin(rest: &mut Fields<'_>) -> Option<Admin> {
    let uid = rest.u32()?;
    let until = rest.u32()?;
    let action = text(rest)?;
    let token = text(rest)?;
    let reason = text(rest)?;
    let scope = text(rest)?;
    let name = text(rest)?;
    let mut targets = Vec::new();
    while !rest.is_empty() {
        let message = rest.lsn()?;
        let number = rest.u16()?;
        targets.push(AdminTarget { message, number, recipient: text(rest)? });
    }
    Some(Admin { action, uid, token, reason, scope, name, until, targets })
}

pub(super) fn feedback(rest: &mut Fields<'_>) -> Option<Feedback> {
    let report = rest.lsn()?;
    let message = rest.lsn()?;
    let number = rest.u16()?;
    Some(Feedback {
        report,
        message,
        number,
        kind: text(rest)?,
        reporter: text(rest)?,
        sender: text(rest)?,
        recipient: text(rest)?,
        message_id: text(rest)?,
        status: text(rest)?,
        text: text(rest)?,
        tenant: text(rest)?,
        campaign: text(rest)?,
    })
}
fn fate_number(fate: RelayFate) -> u8 {
    match fate {
        RelayFate::Delivered => 1,
        RelayFate::Deferred => 2,
        RelayFate::Unknown => 3,
        RelayFate::Bounced => 4,
        RelayFate::Expired => 5,
        RelayFate::Suppressed => 6,
        RelayFate::DoubleBounced => 7,
        RelayFate::Interrupted => 8,
    }
}
