-- One row a leaf: a node that nothing of the task continues. Auxiliary calls (titles, probes of a harness)
-- are never trained, so what only they continue is a leaf, and their own ends are none.
-- Key: group_id, execution_id, leaf
with final as (
    select e.group_id, e.execution_id, l.leaf, l.role_rank
    from tree_leaves as l
    join tree_executions as e on e.x = l.x
)

select * from final
