-- One row a call of a tree whose nodes are not exactly its own tokens: they leave some out, or overlap, or
-- have another id, kind or trainability than the call gives them; and one a node of a call that is in none.
-- Key: group_id, execution_id, call_id
with owned as (
    select
        c.group_id,
        c.execution_id,
        c.call_id,
        c.shared_len,
        c.shared_len + c.n_context as output_start,
        c.n_context + c.n_output as own_tokens,
        c.delivered and c.has_logprobs and c.role_rank < 4 and e.status <> 'lost' as trainable
    from calls as c
    join executions as e on e.execution_id = c.execution_id
    semi join weights as w on w.execution_id = c.execution_id
    where e.is_current and c.call_id < e.calls
),

joined as (
    select
        coalesce(o.group_id, n.group_id) as group_id,
        coalesce(o.execution_id, n.execution_id) as execution_id,
        coalesce(o.call_id, n.call_id) as call_id,
        any_value(o.shared_len) as shared_len,
        any_value(o.own_tokens) as own_tokens,
        min(n.depth_start) as nodes_start,
        max(n.depth_end) as nodes_end,
        sum(n.depth_end - n.depth_start)::bigint as node_tokens,
        count(*) filter (
            n.node is not null
            and not coalesce(
                n.node = n.call_id * 4294967296 + n.depth_start
                and n.depth_end > n.depth_start
                and n.sampled = (n.depth_start >= o.output_start)
                and (n.sampled or n.depth_end <= o.output_start)
                and n.trainable = (n.sampled and o.trainable),
                false
            )
        ) as wrong_nodes
    from owned as o
    full join nodes as n on n.execution_id = o.execution_id and n.call_id = o.call_id
    group by 1, 2, 3
),

final as (
    select *
    from joined
    where wrong_nodes > 0
        or coalesce(node_tokens, 0) <> own_tokens
        or nodes_start <> shared_len
        or nodes_end <> shared_len + own_tokens
)

select * from final
