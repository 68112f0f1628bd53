-- One row a node without the parent it needs, and one a call whose parent is not in the lake or does not own
-- token shared_len - 1.
-- Key: group_id, execution_id, call_id, node, reason
with nodes_alone as (
    select
        n.group_id,
        n.execution_id,
        n.call_id,
        n.node,
        case
            when n.depth_start = 0 then 'the node begins at depth 0 and has a parent'
            else 'the node begins at depth ' || n.depth_start || ' and no node ends there'
        end as reason
    from nodes as n
    left join nodes as p on p.execution_id = n.execution_id and p.node = n.parent_node
    where (n.depth_start > 0 and p.depth_end is distinct from n.depth_start)
        or (n.depth_start = 0 and n.parent_node is not null)
),

calls_alone as (
    select
        c.group_id,
        c.execution_id,
        c.call_id,
        null::bigint as node,
        case
            when p.call_id is null then 'parent call ' || c.parent_call_id || ' is not in the lake'
            else 'parent call ' || c.parent_call_id || ' owns tokens ' || p.shared_len || ' to '
                || (p.shared_len + p.n_context + p.n_output) || ', not the one before ' || c.shared_len
        end as reason
    from calls as c
    left join calls as p on p.execution_id = c.execution_id and p.call_id = c.parent_call_id
    where c.parent_call_id is not null
        and not coalesce(
            c.shared_len > p.shared_len and c.shared_len <= p.shared_len + p.n_context + p.n_output, false
        )
),

final as (
    select * from nodes_alone
    union all
    select * from calls_alone
)

select * from final
