//! Interned texts.

use std::collections::HashMap;
use std::sync::Arc;

/// Names by number, with counts of their uses.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: HashMap<Arc<str>, u32>,
    names: Vec<(Arc<str>, u32)>,
    free: Vec<u32>,
}

impl Names {
    /// The number of a name; counts one use.
    pub fn take(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.by_name.get(name) {
            self.names[number as usize].1 += 1;
            return number;
        }
        let name: Arc<str> = name.into();
        let number = match self.free.pop() {
            Some(number) => {
                self.names[number as usize] = (name.clone(), 1);
                number
            }
            None => {
                self.names.push((name.clone(), 1));
                self.names.len() as u32 - 1
            }
        };
        self.by_name.insert(name, number);
        number
    }

    /// Ends one use of a name.
    pub fn give(&mut self, number: u32) {
        let (name, uses) = &mut self.names[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.by_name.remove(name);
            self.free.push(number);
        }
    }

    pub fn get(&self, number: u32) -> &Arc<str> {
        &self.names[number as usize].0
    }

    /// The number of a name in use.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }
}
