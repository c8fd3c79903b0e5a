use std::future::Future;
use std::task::Poll;

/// Runs all futures concurrently in this task and returns their results.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, result) in running.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *result = Some(ready);
            }
        }
        if running.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, result)| result).collect()
}
