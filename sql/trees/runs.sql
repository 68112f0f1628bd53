-- One row a run of calls (see `tree_calls`), a chain without its branches: depths [depth_start, depth_end)
-- of its path. It leaves its parent run at `depth_start`; `trained_before` trainable tokens of the parent run
-- lie before that, `trained` are its own. `last_call` owns its end, and gives it its role.
-- Key: x, run
with whole as (
    select
        x,
        run,
        min(depth_start) as depth_start,
        max(depth_end) as depth_end,
        max(call_id) as last_call,
        arg_max(role_rank, call_id) as role_rank,
        sum(case when trainable then depth_end - depth_output else 0 end)::bigint as trained
    from tree_calls
    group by x, run
),

final as (
    select
        w.x,
        w.run,
        p.run as parent_run,
        h.parent_call_id,
        w.depth_start,
        w.depth_end,
        w.last_call,
        w.role_rank,
        w.trained,
        p.trained_base
            - g.trained_base
            + case when p.trainable then greatest(w.depth_start - p.depth_output, 0) else 0 end
            as trained_before
    from whole as w
    join tree_calls as h on h.x = w.x and h.call_id = w.run
    left join tree_calls as p on p.x = w.x and p.call_id = h.parent_call_id
    left join tree_calls as g on g.x = w.x and g.call_id = p.run
)

select * from final
