-- One row a trainable node under a leaf of some class that was not masked yet when a path of a lower class
-- (a later one of params.roles) was drawn: it is never drawn while a higher one has something left.
-- What is masked of a path is a beginning of it, so each walk from a leaf towards the root ends there.
-- Key: group_id, execution_id, class, node
with recursive drawable as (
    select l.execution_id, l.leaf, list_position(p.roles, r.role) as class
    from leaves as l
    join (
        values (0, 'main'), (1, 'main-summary'), (2, 'sub-agent'), (3, 'sub-agent-summary')
    ) as r(role_rank, role) on r.role_rank = l.role_rank
    cross join params as p
),

lower_drawn as (
    select h.execution_id, h.class, min(a.path) as path
    from (select distinct execution_id, class from drawable where class is not null) as h
    join admitted as a on a.execution_id = h.execution_id
    cross join params as p
    where list_position(p.roles, a.role) > h.class
    group by h.execution_id, h.class
),

masked as (
    select execution_id, node, min(path) as path
    from segments
    group by execution_id, node
),

left_over as (
    select l.execution_id, l.class, d.path, l.leaf as node
    from drawable as l
    join lower_drawn as d on d.execution_id = l.execution_id and d.class = l.class
    anti join masked as m on m.execution_id = l.execution_id and m.node = l.leaf and m.path < d.path
    union
    select o.execution_id, o.class, o.path, n.parent_node
    from left_over as o
    join nodes as n on n.execution_id = o.execution_id and n.node = o.node
    anti join masked as m on m.execution_id = o.execution_id and m.node = n.parent_node and m.path < o.path
    where n.parent_node is not null
),

final as (
    select n.group_id, n.execution_id, o.class, n.node, n.call_id, o.path as drawn_path
    from left_over as o
    join nodes as n on n.execution_id = o.execution_id and n.node = o.node
    where n.trainable
)

select * from final
