-- Question: How much of the prompts do the engines find in their cache?
-- One row an engine (null: not named). `calls_unknown` did not say what was cached and are left out of the
-- sums. `share` is cached tokens of prompt tokens; `share_of_shared` is of the tokens that an earlier call of
-- the same execution had: what a cache that forgets nothing would hold at least.
-- Then: far below 1 of what is shared: a cache too small, or calls of one execution on several engines.
-- Empty: the lake has no calls.
-- Key: engine
with summed as (
    select
        nullif(engine, '') as engine,
        count(*) as calls,
        count(*) - count(cached_tokens) as calls_unknown,
        sum(shared_len + n_context) filter (cached_tokens is not null)::bigint as prompt_tokens,
        sum(shared_len) filter (cached_tokens is not null)::bigint as shared_tokens,
        sum(cached_tokens)::bigint as cached_tokens
    from calls
    group by all
),

final as (
    select
        *,
        cached_tokens / nullif(prompt_tokens, 0) as share,
        cached_tokens / nullif(shared_tokens, 0) as share_of_shared
    from summed
)

select * from final
