-- One row a leaf: a node that nothing of the task continues. Auxiliary calls (titles, probes of a harness)
-- are never trained, so what only they continue is a leaf, and their own ends are none.
-- Key: group_id, execution_id, leaf
with recursive passed as (
    select execution_id, parent_node as node
    from nodes
    where role_rank < 4 and parent_node is not null
    union
    select n.execution_id, n.parent_node
    from passed as p
    join nodes as n on n.execution_id = p.execution_id and n.node = p.node
    where n.role_rank = 4 and n.parent_node is not null
),

final as (
    select n.group_id, n.execution_id, n.node as leaf, n.role_rank
    from nodes as n
    anti join passed as p on p.execution_id = n.execution_id and p.node = n.node
    where n.role_rank < 4
)

select * from final
