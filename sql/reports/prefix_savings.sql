-- Question: How much do shared prefixes save?
-- One row: tokens that were sent and sampled over all calls, and how many of them are unique: what delta
-- coded capture keeps. `times` is their ratio, null before the first token. `tokens_cached` is what engines
-- said they reused.
-- Then: a low ratio for a long-running harness means that its history does not extend: see drift.
-- Empty: the lake has no calls.
-- Key: calls
with summed as (
    select
        count(*) as calls,
        coalesce(sum(shared_len + n_context + n_output), 0)::bigint as tokens_sent,
        coalesce(sum(n_context + n_output), 0)::bigint as tokens_unique,
        sum(cached_tokens)::bigint as tokens_cached
    from calls
),

final as (
    select *, case when tokens_unique > 0 then tokens_sent::double / tokens_unique end as times
    from summed
    where calls > 0
)

select * from final
