-- One row an execution whose nodes do not lie in its arrays in `trees` one after the other, from beginning to
-- end: each token of a tree belongs to one node, each log-probability to one sampled node.
-- Key: group_id, execution_id
with placed as (
    select
        execution_id,
        sampled,
        depth_end - depth_start as length,
        tree_start = coalesce(sum(depth_end - depth_start) over before, 0) as is_next,
        logprob_start is not distinct from case
            when sampled then coalesce(sum(depth_end - depth_start) filter (sampled) over before, 0)
        end as is_next_logprob
    from nodes
    window before as (
        partition by execution_id order by node rows between unbounded preceding and 1 preceding
    )
),

counted as (
    select
        execution_id,
        sum(length)::bigint as node_tokens,
        coalesce(sum(length) filter (sampled), 0)::bigint as node_logprobs,
        count(*) filter (not coalesce(is_next and is_next_logprob, false)) as misplaced
    from placed
    group by execution_id
),

measured as (
    select group_id, execution_id, len(token_ids) as tokens, len(logprobs) as logprobs
    from trees
),

final as (
    select
        t.group_id,
        t.execution_id,
        t.tokens,
        coalesce(c.node_tokens, 0) as node_tokens,
        t.logprobs,
        coalesce(c.node_logprobs, 0) as node_logprobs,
        coalesce(c.misplaced, 0) as misplaced
    from measured as t
    left join counted as c on c.execution_id = t.execution_id
    where (t.tokens, t.logprobs) is distinct from (coalesce(c.node_tokens, 0), coalesce(c.node_logprobs, 0))
        or c.misplaced > 0
)

select * from final
