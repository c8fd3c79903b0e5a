//! The cost of a verification in allocations: each message of a stranger has it.
#![allow(unsafe_code, reason = "a global allocator counts calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use posthaste_dkim::{Algorithm, DkimResult, Draft, KeyRecord, KnownKeys, Signer, Verifier, generate};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends counts no more.
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_header_field_costs_a_verification_no_allocation() {
    let key = generate(Algorithm::Ed25519).unwrap();
    let texts = [KeyRecord::of(&key).to_string()];
    let signer = Signer::new("example.org", "2611e", key).unwrap();
    let keys = KnownKeys::default();
    let calls = |more: usize| {
        let mut fields = vec!["From: ann@example.org\r\n".to_owned(), "Subject: hello\r\n".to_owned()];
        fields.extend((0..more).map(|number| format!("References: <{number}@example.org>\r\n")));
        let mut draft = Draft::default();
        fields.iter().for_each(|field| draft.field(field.as_bytes()));
        draft.body(b"x\r\n");
        fields.insert(0, signer.sign(&draft, 1, None).unwrap());
        let before = CALLS.get();
        let mut verifier = Verifier::default();
        fields.iter().for_each(|field| verifier.field(field.as_bytes()));
        verifier.begin_body(Some("example.org"));
        verifier.body(b"x\r\n");
        let found: Vec<_> =
            verifier.finish(2).into_iter().map(|claim| claim.verify_with(Some(&texts), &keys).result).collect();
        let after = CALLS.get();
        assert_eq!(found, [DkimResult::Pass]);
        after - before
    };
    // The first reads the key.
    calls(1);
    let (few, many) = (calls(1), calls(101));
    // Growing lists are moved now and then.
    assert!(many < few + 20, "{few} with one field more, {many} with 101");
    assert!(few <= CALLS_MAX, "{few}");
}

/// Of a message with one signature and a known key.
const CALLS_MAX: usize = 40;
