-- Question: Which roles do the tokens go to?
-- One row a role: the tokens of the tree that its calls own. `cached_tokens` counts what the engine reused.
-- Then: much context for few sampled tokens is a role that is told more than it says; look at its prompts.
-- Empty: the lake has no calls.
-- Key: role
with final as (
    select
        role,
        count(*) as calls,
        sum(n_context)::bigint as context_tokens,
        sum(n_output)::bigint as sampled_tokens,
        coalesce(sum(n_output) filter (not delivered), 0)::bigint as undelivered_tokens,
        sum(cached_tokens)::bigint as cached_tokens
    from calls
    group by role
)

select * from final
