-- One row: tokens that were sent and sampled over all calls, and how many of them are unique: what delta
-- coded capture keeps. `times` is their ratio, null before the first token.
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
)

select * from final
