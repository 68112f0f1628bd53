-- One row a (leaf, node on its path from the root) pair; the leaf is on its own path. `leaf_rank` is the
-- class of the leaf's role. The longest of all models (leaves times depth), and so the narrowest.
-- Key: execution_id, leaf, node
with recursive climbed as (
    select
        n.execution_id,
        n.node as leaf,
        n.role_rank as leaf_rank,
        n.node,
        n.parent_node,
        n.depth_end - n.depth_start as length,
        n.trainable
    from leaves as l
    join nodes as n on n.execution_id = l.execution_id and n.node = l.leaf
    union all
    select
        c.execution_id,
        c.leaf,
        c.leaf_rank,
        n.node,
        n.parent_node,
        n.depth_end - n.depth_start,
        n.trainable
    from climbed as c
    join nodes as n on n.execution_id = c.execution_id and n.node = c.parent_node
),

final as (
    select execution_id, leaf, leaf_rank, node, length, trainable
    from climbed
)

select * from final
