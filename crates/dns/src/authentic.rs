//! Queries with the AD bit. hickory sends neither AD nor DO unless it validates answers itself.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use hickory_resolver::config::ConnectionConfig;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsExchange, DnsHandle};
use hickory_resolver::proto::op::DnsRequest;
use hickory_resolver::{ConnectionProvider, PoolContext};

/// Makes connections that ask for the bit AD in answers (RFC 6840 section 5.7).
#[derive(Clone, Default)]
pub(super) struct AskingProvider {
    inner: TokioRuntimeProvider,
    asks_for_ad: bool,
}

/// A connection to a resolver.
#[derive(Clone)]
pub(super) struct AskingConnection {
    inner: DnsExchange<TokioRuntimeProvider>,
    asks_for_ad: bool,
}

impl AskingProvider {
    pub fn new(asks_for_ad: bool) -> Self {
        Self { inner: TokioRuntimeProvider::default(), asks_for_ad }
    }
}

impl ConnectionProvider for AskingProvider {
    type Conn = AskingConnection;
    type FutureConn = Pin<Box<dyn Future<Output = Result<AskingConnection, NetError>> + Send>>;
    type RuntimeProvider = TokioRuntimeProvider;

    fn new_connection(
        &self,
        ip: IpAddr,
        config: &ConnectionConfig,
        context: &PoolContext,
    ) -> Result<Self::FutureConn, NetError> {
        let connecting = self.inner.new_connection(ip, config, context)?;
        let asks_for_ad = self.asks_for_ad;
        Ok(Box::pin(async move { Ok(AskingConnection { inner: connecting.await?, asks_for_ad }) }))
    }

    fn runtime_provider(&self) -> &TokioRuntimeProvider {
        &self.inner
    }
}

impl DnsHandle for AskingConnection {
    type Response = <DnsExchange<TokioRuntimeProvider> as DnsHandle>::Response;
    type Runtime = TokioRuntimeProvider;

    fn send(&self, mut request: DnsRequest) -> Self::Response {
        request.metadata.authentic_data = self.asks_for_ad;
        self.inner.send(request)
    }
}
