//! Our tokens as the engine wants them.

use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

use crate::text::Tokens;

/// Cuts texts into our tokens.
#[derive(Clone, Default)]
pub(super) struct Words(Token);

pub(super) struct WordStream<'a> {
    tokens: Tokens<'a>,
    token: &'a mut Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;
    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        self.0.reset();
        WordStream { tokens: Tokens::new(text), token: &mut self.0 }
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        self.token.position = self.token.position.wrapping_add(1);
        self.tokens.next_into(&mut self.token.text).is_some()
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}
