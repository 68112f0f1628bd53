-- Question: What does a token that is trained on cost?
-- One row a step that consumed groups (without a step: groups that nothing was trained on yet, spent so far).
-- Cost is what the engines did for all executions of these groups, lost and repeated ones too: tokens
-- sampled, tokens prefilled (prompts without what the cache held), seconds of calls (from request to reply,
-- summed over calls that run at once), each also per target token. Prefill and seconds are null where a call
-- does not say.
-- Then: much prefill per target is a cache that misses (cache_hits) or a harness that drifts (drift); many
-- sampled tokens per target are paths that admission leaves out, retries, or groups that wait.
-- Empty: the lake has no calls.
-- Key: step
with spent as (
    select
        group_id,
        sum(n_output)::bigint as sampled_tokens,
        sum(shared_len + n_context)::bigint as prompt_tokens,
        case when count(*) = count(cached_tokens) then sum(shared_len + n_context - cached_tokens)::bigint end
            as prefilled_tokens,
        case
            when count(*) = count(*) filter (started_us > 0 and finished_us > 0)
                then sum(finished_us - started_us)::bigint
        end as engine_us
    from calls
    group by group_id
),

targets as (
    select group_id, sum(n_targets)::bigint as targets
    from weights
    group by group_id
),

by_step as (
    select
        g.consumed_step as step,
        count(*) as groups,
        coalesce(sum(t.targets) filter (g.state = 'CONSUMED'), 0)::bigint as targets,
        sum(s.sampled_tokens)::bigint as sampled_tokens,
        sum(s.prompt_tokens)::bigint as prompt_tokens,
        case when count(*) = count(s.prefilled_tokens) then sum(s.prefilled_tokens)::bigint end
            as prefilled_tokens,
        case when count(*) = count(s.engine_us) then sum(s.engine_us)::bigint end / 1e6 as engine_s
    from groups as g
    join spent as s on s.group_id = g.group_id
    left join targets as t on t.group_id = g.group_id
    group by g.consumed_step
),

final as (
    select
        *,
        sampled_tokens / nullif(targets, 0) as sampled_per_target,
        prefilled_tokens / nullif(targets, 0) as prefilled_per_target,
        1000 * engine_s / nullif(targets, 0) as engine_ms_per_target
    from by_step
)

select * from final
