-- One row an execution whose arrays in `trees` are not as long as its nodes say: each token of a tree belongs
-- to one node, each log-probability to one sampled node.
-- Key: group_id, execution_id
with counted as (
    select
        execution_id,
        sum(depth_end - depth_start)::bigint as node_tokens,
        max(tree_start + depth_end - depth_start) as tokens_end,
        coalesce(sum(depth_end - depth_start) filter (sampled), 0)::bigint as node_logprobs,
        coalesce(max(logprob_start + depth_end - depth_start), 0) as logprobs_end
    from nodes
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
        coalesce(c.node_logprobs, 0) as node_logprobs
    from measured as t
    left join counted as c on c.execution_id = t.execution_id
    where (t.tokens, t.logprobs) is distinct from (coalesce(c.node_tokens, 0), coalesce(c.node_logprobs, 0))
        or c.tokens_end <> c.node_tokens
        or c.logprobs_end <> c.node_logprobs
)

select * from final
