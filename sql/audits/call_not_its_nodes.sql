-- One row a call of a tree whose nodes are not exactly its own tokens, from shared_len to its end.
-- Key: group_id, execution_id, call_id
with covered as (
    select
        execution_id,
        call_id,
        min(depth_start) as nodes_start,
        max(depth_end) as nodes_end,
        sum(depth_end - depth_start)::bigint as node_tokens
    from nodes
    group by execution_id, call_id
),

owned as (
    select c.group_id, c.execution_id, c.call_id, c.shared_len, c.n_context + c.n_output as own_tokens
    from calls as c
    join executions as e on e.execution_id = c.execution_id
    semi join weights as w on w.execution_id = c.execution_id
    where e.is_current and c.call_id < e.calls
),

final as (
    select o.*, n.nodes_start, n.nodes_end, n.node_tokens
    from owned as o
    left join covered as n on n.execution_id = o.execution_id and n.call_id = o.call_id
    where coalesce(n.node_tokens, 0) <> o.own_tokens
        or n.nodes_start <> o.shared_len
        or n.nodes_end <> o.shared_len + o.own_tokens
)

select * from final
