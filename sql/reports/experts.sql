-- Question: Which calls have the routed experts of their tokens, and what do they take?
-- One row a policy version that a call ended with (null: the engine did not say). `tokens` are the new ones,
-- prompt and output, of calls `with_experts`; `bytes` is what those take in the blobs. `auxiliary` calls are
-- never trained, and not asked for; all the others are `without`.
-- Then: one array is read by its reference, `calls.experts`, with lake.experts.fetch; those of a path are put
-- together by lake.experts.along.
-- Empty: the lake has no calls.
-- Key: version
with stated as (
    select
        version_last as version,
        role,
        n_context + n_output as tokens,
        split_part(experts, ':', 2)::bigint as bytes
    from calls
),

final as (
    select
        version,
        count(*) as calls,
        count(bytes) as with_experts,
        count(*) filter (bytes is null and role <> 'auxiliary') as without,
        count(*) filter (bytes is null and role = 'auxiliary') as auxiliary,
        coalesce(sum(tokens) filter (bytes is not null), 0)::bigint as tokens,
        coalesce(sum(bytes), 0)::bigint as bytes,
        (sum(bytes) / sum(tokens) filter (bytes is not null))::double as bytes_per_token
    from stated
    group by version
)

select * from final
