-- One row a place where a path is not the way from its root to its leaf: a gap, an overlap, a node that does
-- not continue the one before it, or another end than the admitted leaf.
-- Key: group_id, execution_id, path, depth_start, reason
with walked as (
    select
        group_id,
        execution_id,
        path,
        node,
        depth_start,
        lag(node) over along as node_before,
        lag(depth_start + length) over along as end_before,
        lead(node) over along is null as is_last
    from segments
    window along as (partition by execution_id, path order by depth_start, node)
),

judged as (
    select
        w.group_id,
        w.execution_id,
        w.path,
        w.depth_start,
        w.node,
        case
            when w.end_before is null and w.depth_start <> 0 then 'it begins at depth ' || w.depth_start
            when w.depth_start <> w.end_before
                then 'a segment ends at depth ' || w.end_before || ', the next begins at ' || w.depth_start
            when n.parent_node is distinct from w.node_before then 'the node does not continue the one before'
            when w.is_last and a.leaf is distinct from w.node then 'it does not end at its leaf'
        end as reason
    from walked as w
    left join nodes as n on n.execution_id = w.execution_id and n.node = w.node
    left join admitted as a on a.execution_id = w.execution_id and a.path = w.path
),

final as (
    select group_id, execution_id, path, depth_start, node, reason
    from judged
    where reason is not null
)

select * from final
