-- One row a run, a part of the tree without branches: depths [depth_start, depth_end) of its path. It leaves
-- its parent run at `depth_start`; `trained_before` trainable tokens of the parent run lie before that,
-- `trained` are its own. `last_call` owns its end and gives it its role; `parent_call_id` owns the token that
-- it continues.
-- A run is a chain of calls, each up to where the next leaves it (`run` = 2 head), or the rest of a call that
-- the next one left before its end (2 call_id + 1). So a tree has about as many runs as leaves, and a call
-- that was tried again and again makes no deep nest of them: paths are worked out on runs.
-- Key: x, run
with parts as (
    select
        *,
        case when trainable then depth_end - depth_output else 0 end as sampled,
        case when trainable then greatest(stop - depth_output, 0) else 0 end as sampled_to_stop
    from tree_calls
),

chains as (
    select
        l.x,
        2 * l.head as run,
        case when h.depth_start > p.stop then 2 * p.call_id + 1 else 2 * p.head end as parent_run,
        h.parent_call_id,
        h.depth_start,
        l.depth_end,
        l.call_id as last_call,
        l.role_rank,
        l.trained_base - h.trained_base + l.sampled as trained,
        h.trained_before
            + case
                when h.depth_start > p.stop then -p.sampled_to_stop
                else p.trained_base - g.trained_base
            end
            as trained_before
    from parts as l
    join tree_calls as h on h.x = l.x and h.call_id = l.head
    left join parts as p on p.x = h.x and p.call_id = h.parent_call_id
    left join tree_calls as g on g.x = p.x and g.call_id = p.head
    where l.stop is null
),

rests as (
    select
        c.x,
        2 * c.call_id + 1 as run,
        2 * c.head as parent_run,
        c.call_id as parent_call_id,
        c.stop as depth_start,
        c.depth_end,
        c.call_id as last_call,
        c.role_rank,
        c.sampled - c.sampled_to_stop as trained,
        c.trained_base - h.trained_base + c.sampled_to_stop as trained_before
    from parts as c
    join tree_calls as h on h.x = c.x and h.call_id = c.head
    where c.stop < c.depth_end
),

final as (
    select * from chains
    union all
    select * from rests
)

select * from final
