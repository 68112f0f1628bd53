-- One row a (leaf, node on its path from the root) pair; the leaf is on its own path.
-- Key: group_id, execution_id, leaf, node
with recursive climbed as (
    select n.group_id, n.execution_id, l.leaf, n.node, n.parent_node, n.depth_end - n.depth_start as length,
        n.trainable
    from leaves as l
    join nodes as n on n.execution_id = l.execution_id and n.node = l.leaf
    union all
    select n.group_id, n.execution_id, c.leaf, n.node, n.parent_node, n.depth_end - n.depth_start,
        n.trainable
    from climbed as c
    join nodes as n on n.execution_id = c.execution_id and n.node = c.parent_node
),

final as (
    select group_id, execution_id, leaf, node, length, trainable
    from climbed
)

select * from final
